"""Other systems' formats: versions written for their readers, and their writers' versions taken into a run."""

from pulse_registry.interop.exporting import Exported, Form, export_chain, export_delta, export_full
from pulse_registry.interop.importing import Imported, Importer, import_folder

__all__ = ["Exported", "Form", "Imported", "Importer", "export_chain", "export_delta", "export_full", "import_folder"]
