"""From the rows of a shot list to the jobs that would make them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from service.auth import Principal
from service.batch.shots import ShotProblem, ShotRow
from service.catalog import video_limits
from service.context import Gateway
from service.errors import ApiError
from service.ids import draw_seed
from service.video.idempotency import fingerprint
from service.video.pictures import input_image
from service.video.request import ClipChoices, find_problems, resolve
from workers.protocol import JobLabels, VideoJobRequest, VideoLimits
from workers.store.files import StoredFile


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedShot:
    """One clip of a batch; equal fingerprints mean the same shot with the same pixels."""

    row: ShotRow
    request: VideoJobRequest
    labels: JobLabels
    fingerprint: str


class BatchPlanner:
    """Checks rows against the limits of their models and settles every choice."""

    def __init__(self, gateway: Gateway, principal: Principal) -> None:
        """Plan for one key."""
        self._gateway = gateway
        self._principal = principal
        self._models: dict[str | None, tuple[str, VideoLimits] | ApiError] = {}

    def check(self, rows: Sequence[ShotRow]) -> list[ShotProblem]:
        """Everything the models cannot do, by line."""
        problems: list[ShotProblem] = []
        for row in {row.line: row for row in rows}.values():
            model = self._model(row.model)
            if isinstance(model, ApiError):
                problems.append(ShotProblem(row.line, "model", model.message))
                continue
            found = find_problems(_choices(row), model[1])
            problems += [ShotProblem(row.line, error.param, error.message) for error in found]
        return problems

    def plan(self, rows: Sequence[ShotRow], images: Mapping[str, StoredFile]) -> list[PlannedShot]:
        """The clips of rows that `check` found nothing against."""
        return [self._shot(row, images[row.image]) for row in rows]

    def _shot(self, row: ShotRow, image: StoredFile) -> PlannedShot:
        found = self._model(row.model)
        if isinstance(found, ApiError):
            raise found
        model, limits = found
        request = resolve(
            _choices(row), input_image(image), model=model, limits=limits, draw_seed=draw_seed
        )
        labels = JobLabels(
            priority=row.priority, project=row.project, shot=row.label, tags=row.tags
        )
        pixels = request.model_dump(mode="json", exclude={"image", "image_name", "seed"})
        pixels |= {"image": image.sha256, "seed": row.seed}
        who = {"project": row.project, "shot": row.label}
        return PlannedShot(
            row=row, request=request, labels=labels, fingerprint=fingerprint(pixels | who)
        )

    def _model(self, name: str | None) -> tuple[str, VideoLimits] | ApiError:
        if name not in self._models:
            try:
                self._models[name] = video_limits(self._gateway, name)
            except ApiError as error:
                self._models[name] = error
        return self._models[name]

    def default_model_error(self) -> ApiError | None:
        """Why no row without a model of its own could be checked, if so."""
        found = self._models.get(None)
        return found if isinstance(found, ApiError) else None


def _choices(row: ShotRow) -> ClipChoices:
    names = set(ClipChoices.model_fields) - {"save_frames"}
    return ClipChoices.model_validate({name: getattr(row, name) for name in names})
