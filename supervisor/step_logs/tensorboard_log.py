"""Steps as TensorBoard scalars, in one folder for all attempts."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from supervisor.errors import UsageError
from supervisor.storage.files.private_files import make_private


class TensorboardLog:
    """Appends to a folder of event files.

    Raises:
        UsageError: TensorBoard is not installed.
        OSError: the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as error:
            raise UsageError(
                "TensorBoard is missing: pip install 'training-supervisor[tensorboard]'"
            ) from error
        self._event, self._session = event_pb2.Event, event_pb2.SessionLog
        self._summary = summary_pb2.Summary
        make_private(folder)
        self._writer = EventFileWriter(str(folder))

    def begin_again(self, step: int) -> None:
        """From here on only what follows counts: TensorBoard drops earlier values from `step` on.

        Called before the first step of each attempt, and after each rollback.
        """
        start = self._session(status=self._session.START)
        self._writer.add_event(self._event(step=step, session_log=start))

    def write(self, step: int, time_s: float, values: Mapping[str, float], *, row: int) -> None:
        """Adds one step; `time_s` in unix seconds."""
        scalars = [self._summary.Value(tag=n, simple_value=v) for n, v in values.items()]
        summary = self._summary(value=scalars)
        self._writer.add_event(self._event(wall_time=time_s, step=step, summary=summary))

    def write_text(self, step: int, name: str, text: str) -> None:
        """Adds a text to the page TEXT."""
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.types_pb2 import DT_STRING
        from tensorboard.plugins.text import metadata

        value = self._summary.Value(
            tag=name,
            metadata=metadata.create_summary_metadata(display_name=name, description=""),
            tensor=TensorProto(dtype=DT_STRING, string_val=[text.encode()]),
        )
        self._writer.add_event(self._event(step=step, summary=self._summary(value=[value])))

    def flush(self) -> None:
        """Returns when everything is in the file."""
        self._writer.flush()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._writer.close()

    def __enter__(self) -> TensorboardLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
