"""`PredictionsAgent`: applies the patches of a predictions file, as SWE-bench's harness does, inside the sandboxes."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from ohsandbox.errors import UsageError
from ohsandbox.evaluation.agents.base import AgentReport, EvaluatedAgent, program_report
from ohsandbox.evaluation.formats.inputs import read_lines
from ohsandbox.evaluation.formats.problems import InvalidTask
from ohsandbox.evaluation.patches import NO_PROGRAM, NOT_APPLIED, apply_script, with_final_newline
from ohsandbox.strict_json import load_json

if TYPE_CHECKING:
    from pathlib import Path

    from ohsandbox.evaluation.agents.base import Assignment
    from ohsandbox.runtime import Runtime

_MAX_PREDICTION_BYTES = 1024**3
"""Of a line: a patch of 200 MB has been seen, where an agent committed a build."""
_PATCH = "/logs/agent/model.patch"


class _Place(NamedTuple):
    offset: int
    model: str | None


class PredictionsAgent(EvaluatedAgent):
    """Applies the patch that a file has for a task; a patch that is missing or does not apply solves nothing."""

    name = "predictions"

    def __init__(self, path: Path) -> None:
        """Validate every line of a JSONL file of `instance_id`, `model_patch` and `model_name_or_path`.

        Raises:
            UsageError: it cannot be read, or a line is not a prediction; with the file and the line.
        """
        super().__init__()
        self._path = path
        self._places: dict[str, _Place] = {}
        digest = hashlib.sha256()
        try:
            for line in read_lines(path, limit_bytes=_MAX_PREDICTION_BYTES):
                if line.problem is not None:
                    raise UsageError(f"{line.problem}. Fix the file of predictions.")
                self._add(line.value, line.number, line.offset)
                digest.update(json.dumps(line.value, sort_keys=True).encode())
        except InvalidTask as error:
            raise UsageError(f"{error}. Fix the file of predictions.") from None
        self._digest = f"sha256:{digest.hexdigest()}"

    def _add(self, prediction: dict[str, Any], number: int, offset: int) -> None:
        name, patch, model = (
            prediction.get("instance_id"),
            prediction.get("model_patch"),
            prediction.get("model_name_or_path"),
        )
        location = f"{self._path}:{number}"
        if not isinstance(name, str) or "model_patch" not in prediction:
            raise UsageError(f"{location}: expected 'instance_id' and 'model_patch'. Fix the file of predictions.")
        if not isinstance(patch, str | None) or not isinstance(model, str | None):
            raise UsageError(f"{location}: 'model_patch' and 'model_name_or_path' are texts. Fix the file.")
        if name in self._places:
            raise UsageError(f"{location}: a second prediction for {name!r}. Leave one out.")
        self._places[name] = _Place(offset, model)

    @property
    def settings(self) -> dict[str, Any]:
        """See `EvaluatedAgent.settings`."""
        return {**super().settings, "predictions": self._digest}

    def work(self, runtime: Runtime, assignment: Assignment) -> AgentReport:
        """See `EvaluatedAgent.work`.

        Raises:
            UsageError: the task's image has neither git nor patch.
        """
        prediction = self._places.get(assignment.task.id)
        if prediction is None:
            return AgentReport(notes=(f"no prediction in {self._path.name}",))
        if not (patch := self._patch(prediction)):
            return AgentReport(model=prediction.model, notes=("the prediction's patch is empty",))
        runtime.write_bytes(_PATCH, with_final_newline(patch).encode(), user="root", mode=0o644)
        ended = self.run_logged(
            runtime, assignment, apply_script(_PATCH), "apply.txt", user=assignment.step.agent.user,
            timeout_s=assignment.timeout_s,
        )  # fmt: skip
        if ended.exit_code == NO_PROGRAM:
            raise UsageError(f"The image of task {assignment.task.id} has neither git nor patch. Name one that has.")
        if ended.exit_code == NOT_APPLIED:
            return AgentReport(model=prediction.model, notes=("the prediction's patch does not apply: see apply.txt",))
        return program_report(ended, assignment.timeout_s).model_copy(update={"model": prediction.model})

    def _patch(self, prediction: _Place) -> str:
        with self._path.open("rb") as opened:
            opened.seek(prediction.offset)
            fields = load_json(opened.readline(_MAX_PREDICTION_BYTES))
        return fields["model_patch"] or ""
