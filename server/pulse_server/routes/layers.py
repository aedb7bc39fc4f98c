"""Layers: how many cells of each the versions change, for the page's heat map."""

from __future__ import annotations

from typing import Annotated

from fastapi.responses import Response

from pulse_schemas.api import LayerMark, LayersBody, StepMark
from pulse_server.routes import examples
from pulse_server.routes.dependencies import ReadRun
from pulse_server.routes.operation import answer, operations, problem
from pulse_server.routes.params import DECIMAL, Before, between, whole
from pulse_server.runs.layer_counts import MOST_STEPS

router = operations("layers")
AfterVersion = Annotated[Before, whole("the versions over this one", 41)]
Steps = Annotated[int, between(1, MOST_STEPS), DECIMAL, whole("how many at most", MOST_STEPS)]


@router.get(
    "/v1/runs/{run}/layers",
    summary="Count changed cells by layers",
    description=(
        "By the 16 MiB groups that begin in a layer: what the heads of patches say, exactly. `pulse stats` decodes "
        "patches, and counts each layer by itself."
    ),
    response_model=LayersBody,
    responses={
        200: answer(
            "A page of versions, oldest first. Retired ones are passed over.",
            LayersBody(
                run=examples.RUN,
                rows=(LayerMark(name="model.layers.0", layers=("model.layers.0", "model.layers.1"), cells=8_388_608),),
                steps=(StepMark(base=41, target=42, changed=(36_909,)),),
            ),
        ),
        404: problem("There is no such run."),
    },
)
async def show_layers(run: ReadRun, after: AfterVersion = -1, limit: Steps = MOST_STEPS) -> Response:
    """Show what versions change, by layers."""
    feed, service = await run.feed(), run.service
    page = await service.call(service.layers.page, feed.state, after, limit)
    return page.aged(feed.age_s)
