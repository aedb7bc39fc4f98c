"""The launches of the kernels that code: ranks, tokens, rANS."""

from __future__ import annotations

from pulse_kernels.gpu.cells import UNSIGNED
from pulse_kernels.gpu.coding import class_rank, class_select, layout, order, rans_decode, rans_encode
from pulse_kernels.gpu.coding.encode import GAP_TABLES
from pulse_kernels.gpu.coding.symbols import PIECES, WIDE
from pulse_kernels.gpu.tiling import TILE
from tests.unit.kernels.gpu.launch import Launch

PIECE = "piece_group:*i64 piece_start:*i64 piece_count:*i64"
TILED = "address:*i64 count:*i32 group:*i32"
ROWS_OF_16_BYTES = ("ld.global.v4.b32",)
SPLIT = {"ROWS": TILE // class_rank.ROW}
ENCODE = f"places:*i32 {PIECE} piece_offsets:*i64 group_offsets:*i64 parameters:*i32 gap_tables:*i32 value_tables:*i32"
ENCODE += " sizes:*i32 words_at:*i64 group_at:*i64 group_words:*i64 chunks:i64 longest:i32"
DECODE = f"words:*i16 {PIECE} words_at:*i64 words_end:*i64 piece_run:*i64 run_end:*i64 run_gap:*i64 gap_tables:*i32"
DECODE += " gap_slots:*u8 value_tables:*i32 value_slots:*u8 places:*i32 tails:*i64 errors:*i32 chunks:i64 longest:i32"
SORTED = f"ranks:*i32 {PIECE} group_offsets:*i64 is_float:*i32 class_starts:*i32 before:*i32 places:*i32 counts:*i32"
COUNTED = f"index:*i32 {PIECE} group_offsets:*i64 is_float:*i32 counts:*i32 chunk:i32"
SLICE = "group:*i32 counts:*i32 class_begin:*i64 class_end:*i64 ranks:*i32 begins:*i32 tiles:i32"
FIND = f"{TILED} first:*i32 offsets:*i64 group_offsets:*i64 classing:*i32 is_float:*i32 counts:*i32 begins:*i32"
FIND += " class_begin:*i64 class_end:*i64 ranks:*i32 places:*i32 index:*i32"
MERGE = "group:*i32 offsets:*i64 group_offsets:*i64 begins:*i32 class_begin:*i64 class_end:*i64 places:*i32 index:*i32"
LAY_OUT = "classing:*i32 ends:*i32 sizes:*i32 piece_offsets:*i64 words_at:*i64 table_at:*i32 table_bytes:*i32"
HEADS = "classing:*i32 changed:*i32 parameters:*i32 ends:*i32 levels:*u8 table_at:*i32 table_bytes:*i32"
JOIN = "piece_start:*i64 piece_count:*i64 piece_run:*i64 run_piece:*i64 run_end:*i64 sums:*i64 places:*i32"
CHECK = "run_group:*i64 run_kind:*i64 run_end:*i64 cells:*i64 population:*i32 places:*i32 errors:*i32 runs:i64"


def cells(*names: str, width: int) -> str:
    """Return the arguments that point to cells."""
    kind = "*u8" if width == 1 else f"*i{8 * width}"
    return " ".join(f"{name}:{kind}" for name in names)


def shapes(width: int) -> dict[str, object]:
    """Return the types that cells of a width are computed in."""
    return {"CELL": UNSIGNED[width], "WIDE": WIDE[width]}


def by_tile_and_piece(width: int) -> list[Launch]:
    """Return the launches over tiles, and over pieces of the changes."""
    cell, wide = {"CELL": UNSIGNED[width]}, shapes(width)
    return [
        Launch(
            "coding.class_rank.count_classes",
            f"{TILED} classing:*i32 counts:*i32",
            cell | SPLIT,
            class_rank.WARPS,
            ROWS_OF_16_BYTES,
        ),
        Launch(
            "coding.class_rank.rank_changes",
            f"{TILED} first:*i32 classing:*i32 counts:*i32 tile_offsets:*i64 index:*i32 ranks:*i32",
            SPLIT | cell | {"ITEMS": class_rank.ITEMS},
            class_rank.WARPS,
            ROWS_OF_16_BYTES,
        ),
        Launch(
            "coding.class_select.find_places",
            f"{FIND} {cells('steps', 'distance', width=width)}",
            SPLIT | cell | {"ITEMS": class_select.ITEMS},
            class_rank.WARPS,
            ROWS_OF_16_BYTES,
        ),
        Launch(
            "coding.class_select.merge_classes",
            f"{MERGE} {cells('steps', 'distance', width=width)}",
            {"ITEMS": class_select.ITEMS, "MERGED": class_select.MERGED},
        ),
        Launch(
            "coding.order.count_exponents",
            f"{PIECE} {cells('old', width=width)} classing:*i32 counts:*i32",
            cell | {"BLOCK": order.BLOCK},
            4,
        ),
        Launch(
            "coding.order.sort_changes",
            f"{SORTED} {cells('old', 'new', 'steps', width=width)}",
            wide | {"TABLES": order.CLASS_TABLES, "BLOCK": order.BLOCK},
            order.WARPS,
        ),
        Launch(
            "coding.order.count_contexts",
            f"{COUNTED} {cells('old', 'new', 'steps', width=width)}",
            wide | {"BLOCK": order.BLOCK},
            4,
        ),
    ]


def by_chunk(width: int) -> list[Launch]:
    """Return the launches over chunks: their arithmetic is another for cells of 8 bytes."""
    chunked = shapes(width) | {"PIECES": PIECES[width]}
    return [
        *(
            Launch(
                "coding.rans_encode.encode_chunks",
                f"{ENCODE} {cells('steps', width=width)} words:{'*i16' if write else '*i32'}",
                chunked | {"CONTEXTS": contexts, "WRITE": write, "TABLES": tables, "CHUNKS": rans_encode.CHUNKS},
            )
            for contexts, tables in ((False, order.CLASS_TABLES), (True, GAP_TABLES))
            for write in (False, True)
        ),
        *(
            Launch(
                "coding.rans_decode.decode_chunks",
                f"{DECODE} {cells('steps', width=width)}",
                chunked | {"CONTEXTS": contexts, "CHUNKS": rans_decode.CHUNKS},
            )
            for contexts in (False, True)
        ),
    ]


KERNELS: list[Launch] = [
    Launch("coding.class_select.find_slices", SLICE, {"SEARCHED": class_select.SEARCHED}),
    *by_tile_and_piece(2),
    *by_chunk(2),
    *by_chunk(8),
    Launch(
        "coding.class_rank.scan_counts",
        "counts:*i32 offsets:*i64 totals:*i32 starts:*i32",
        {"SCAN": class_rank.SCAN},
        4,
    ),
    Launch("coding.order.choose_classes", "counts:*i32 classing:*i32", {"TABLES": order.CLASS_TABLES}, 4),
    Launch(
        "coding.order.count_kinds",
        "ranks:*i32 piece_start:*i64 piece_count:*i64 counts:*i32",
        {"BLOCK": order.BLOCK},
        4,
    ),
    Launch(
        "coding.rans_tables.make_tables",
        "counts:*i32 weights:*i32 bounds:*i64 tables:*i32 levels:*u8 ends:*i32",
        {},
        4,
    ),
    Launch("coding.rans_tables.read_tables", "data:*u8 at:*i64 weights:*i32 tables:*i32 slots:*u8", {}, 8),
    Launch("coding.layout.choose_parameters", "changed:*i32 population:*i32 odds:*fp64 parameters:*i32", {}, 4),
    *(
        Launch(
            "coding.layout.lay_out",
            f"{LAY_OUT} group_words:*i64 group_bytes:*i64",
            {"CONTEXTS": contexts, "TABLES": tables, "SCAN": layout.SCAN},
            4,
        )
        for contexts, tables in ((False, order.CLASS_TABLES), (True, GAP_TABLES))
    ),
    *(
        Launch(
            "coding.layout.write_heads",
            f"{HEADS} piece_offsets:*i64 group_at:*i64 data:*u8",
            {"CONTEXTS": contexts, "TABLES": tables},
            4,
        )
        for contexts, tables in ((False, order.CLASS_TABLES), (True, GAP_TABLES))
    ),
    Launch("coding.rans_decode.join_chunks", JOIN, {"BLOCK": order.BLOCK}, 4),
    *(
        Launch("coding.rans_decode.check_runs", CHECK, {"RANKED": ranked, "RUNS": rans_decode.RUNS}, 4)
        for ranked in (False, True)
    ),
]
