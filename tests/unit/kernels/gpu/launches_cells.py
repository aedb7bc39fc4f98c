"""The launches of the kernels that work on cells: diff, digest, apply, merge, and the outer optimizer."""

from __future__ import annotations

from pulse_kernels.gpu.cells import UNSIGNED
from pulse_kernels.gpu.outer import BLOCK
from pulse_kernels.gpu.tiling import TILE
from tests.unit.kernels.gpu.launch import Launch

DIFF = "live:*i64 wide:*i32 shadow:*i64 count:*i32 capacity:i64 cursor:*i64 found:*i32 words:*i32 place:*i64"
ORDER = "first:*i32 words:*i32 place:*i64 tile_offsets:*i64 number:*i32 old_words:*i64 new_words:*i64 index:*i32"
SPARSE = "group:*i32 starts:*i64 tile_offsets:*i64 index:*i32"
COUNT = "offsets:*i64 index:*i32 old:*i16 other_offsets:*i64 other_index:*i32 other_new:*i16 before:*i32 kept:*i32"
WRITE = "offsets:*i64 index:*i32 old:*i16 new:*i16 before:*i32 other_offsets:*i64 other_index:*i32 other_new:*i16"
WRITE += " other_before:*i32 other_kept:*i32 out_offsets:*i64 out_index:*i32 out_old:*i16 out_new:*i16"

KERNELS = [
    *(
        Launch(
            "diff.find_changes",
            f"{DIFF} number:*i32 old:*i64 new:*i64",
            {"ROWS": TILE // 32, "CELL": UNSIGNED[2], "PER_WORD": 4, "ROUNDED": rounded},
            8,
            ("ld.global.v2.b64",),
            shared=1024,  # sums across warps; the words stay in the registers that they were loaded into
        )
        for rounded in (False, True)
    ),
    Launch("diff.order_changes", f"{ORDER} old:*i16 new:*i16", {"RUN": 64, "PER_WORD": 4, "CELL": UNSIGNED[2]}),
    Launch(
        "digest.digest_tiles",
        "address:*i64 count:*i32 group:*i32 flat:*i64 table:*i32 sums:*i64",
        {"TILE": TILE, "CELL": UNSIGNED[2], "LIMBS": 1},
        4,
        ("ld.global.v4.b32",),
        shared=1024,
    ),
    Launch(
        "digest.digest_changed",
        f"{SPARSE} old:*i64 new:*i64 table:*i32 sums:*i64",
        {"RUN": 128, "CELL": UNSIGNED[8], "LIMBS": 4},
    ),
    Launch(
        "apply.find_tiles",
        "group:*i32 first:*i32 group_offsets:*i64 index:*i32 tile_offsets:*i64 tiles:i32",
        {"SEARCHED": 128},
        4,
    ),
    Launch("apply.gather_cells", "address:*i64 first:*i32 tile_offsets:*i64 index:*i32 out:*i16", {"RUN": 128}),
    Launch("apply.scatter_cells", "address:*i64 first:*i32 tile_offsets:*i64 index:*i32 values:*u8", {"RUN": 128}),
    *(
        Launch(
            "apply.move_cells",
            "group:*i32 is_float:*i32 tile_offsets:*i64 old:*i16 distance:*i16 out:*i16",
            {"RUN": 128, "CELL": UNSIGNED[2], "BACK": back},
        )
        for back in (False, True)
    ),
    Launch(
        "apply.copy_tiles",
        "source:*i64 wide:*i32 target:*i64 count:*i32",
        {"TILE": TILE, "CELL": UNSIGNED[2], "PER_WORD": 4, "ROUNDED": True},
        8,
        ("ld.global.b64", "st.global.b64"),
        shared=0,
    ),
    *(Launch("merge.count_kept", COUNT, {"RUN": 128, "FIRST": first}) for first in (False, True)),
    *(Launch("merge.write_kept", WRITE, {"RUN": 128, "FIRST": first}) for first in (False, True)),
    Launch(
        "outer.collect_cells",
        "theta:*fp32 local:*fp32 residual:*fp32 sums:*fp32 worst:*i32 cells:i64",
        {"BLOCK": BLOCK},
        4,
        fused=False,
    ),
    Launch(
        "outer.gate_cells",
        "theta:*fp32 residual:*fp32 levels:*i16 fired:*i8 gain:fp32 inverse:fp32 cells:i64",
        {"BLOCK": BLOCK},
        4,
        fused=False,
    ),
    Launch(
        "outer.step_cells",
        "theta:*fp32 momentum:*fp32 gradient:*fp32 rate:fp32 decay:fp32 cells:i64",
        {"BLOCK": BLOCK},
        4,
        fused=False,
    ),
]
