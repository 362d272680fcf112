"""Starts supervision in the moment in which torch has been imported."""

from __future__ import annotations

import random
import sys
import traceback
from typing import TYPE_CHECKING

from supervisor.errors import SupervisorError
from supervisor.storage.run.rundir import RunDirectory

if TYPE_CHECKING:
    from supervisor.worker.session import Session


def start_session(
    rundir: RunDirectory, attempt: int, rank: int, salt: str | None = None
) -> Session | None:
    """Returns the running session; None if it could not be built: the script runs as without us."""
    try:
        from supervisor.worker.session import Session

        session = Session(rundir, attempt, rank)
        _begin_random(session)
        _patch(session)
        if salt is not None:
            from supervisor.worker.interception.patches_spawn import hand_on_salt

            hand_on_salt(salt)
        _seed(session.parts.settings.seed)
        session.begin()
    except (SupervisorError, OSError) as error:
        print(f"supervisor: error: {error}: supervision is off", file=sys.stderr)
        return None
    except Exception:  # an error of ours must not stop the script
        traceback.print_exc()
        print("supervisor: error: the lines above: supervision is off", file=sys.stderr)
        return None
    return session


def _begin_random(session: Session) -> None:
    """Unseeded scripts, too, begin a resumed run with the random numbers of its first attempt."""
    from supervisor.worker.recording.first_random import begin_with_first_random, note_first_random

    path = session.parts.rundir.tape(session.parts.rank).with_suffix(".random")
    try:
        if session.interception.replaying or session.parts.order.experiment:
            begin_with_first_random(path)
        else:
            note_first_random(path)
    except (OSError, SupervisorError) as error:
        session.warn(f"an unseeded script will not resume exactly: {error}")


def _patch(session: Session) -> None:
    from supervisor.worker.interception.instrument import instrument
    from supervisor.worker.interception.patches_files import watch_files
    from supervisor.worker.interception.patches_ranks import watch_ranks
    from supervisor.worker.interception.patches_reads import watch_reads
    from supervisor.worker.interception.patches_samples import watch_samples
    from supervisor.worker.several_ranks import SeveralRanks

    instrument(session)
    watch_reads(session)
    parts = session.parts
    watch_files(session, parts.file_sizes, parts.replayed_files, parts.script_files)
    watch_ranks(SeveralRanks(session.parts))
    watch_samples(session.parts.samples)
    if session.parts.notes_fetches:
        from supervisor.worker.interception.patches_loading import watch_fetches

        watch_fetches(session, session.parts.proofs)


def _seed(seed: int | None) -> None:
    if seed is None:
        return
    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
