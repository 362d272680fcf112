"""Starts supervision in the moment in which torch has been imported."""

from __future__ import annotations

import os
import random
import sys
import traceback
from typing import TYPE_CHECKING

from supervisor.errors import SupervisorError
from supervisor.own_process import Given
from supervisor.storage.run.healing_memory import takes_dead_ranks_place
from supervisor.storage.run.run_state import load_order
from supervisor.storage.run.rundir import RunDirectory
from supervisor.worker import current
from supervisor.worker.core.process_signs import SHORT, ExitRequest
from supervisor.worker.outside_draws.outside_draws import META, OUTSIDE

if TYPE_CHECKING:
    from supervisor.worker.build import BuiltWorker
    from supervisor.worker.worker_session import Session


def start_session(rundir: RunDirectory, attempt: int, given: Given) -> Session | None:
    """Returns the running session; None if it could not be built: the script runs as without us.

    Args:
        rundir, attempt: of the run.
        given: what the process was started with.

    Raises:
        ExitRequest: it could not be built, and others are in the middle of a training.
    """
    try:
        from supervisor.worker.build import BuiltWorker

        worker = BuiltWorker(rundir, attempt, given.place, given.kept)
        _begin_random(worker)
        _patch(worker)
        if given.salt is not None:
            from supervisor.worker.random_state.patches_random import hand_on_salt

            hand_on_salt(given.salt)
        if not given.place.is_alone:
            from supervisor.worker.ranks.collective_records import ask_torch_to_keep_records

            ask_torch_to_keep_records(rundir.nccl_trace(attempt), os.environ)
        _seed(worker.settings.seed)
        worker.session.start()
        told = None if worker.start is None else worker.start.checkpoint.meta.get(META, {})
        OUTSIDE.session_begins(worker.session.call_state, told, worker.is_experiment)
    except (SupervisorError, OSError) as error:
        _leave_where_others_resume(rundir, attempt, given, error)
        print(f"supervisor: error: {error}: supervision is off", file=sys.stderr)
        return None
    except Exception as error:  # an error of ours must not stop the script
        traceback.print_exc()
        _leave_where_others_resume(rundir, attempt, given, error)
        print("supervisor: error: the lines above: supervision is off", file=sys.stderr)
        return None
    current.api = worker.api
    return worker.session


def _leave_where_others_resume(
    rundir: RunDirectory, attempt: int, given: Given, error: Exception
) -> None:
    """A rank that trained from the start, while others replay to a checkpoint, would wait for them
    for ever.

    Raises:
        ExitRequest: they do.
    """
    if given.place.is_alone:
        return
    try:
        resumes = load_order(rundir, attempt).checkpoint_step is not None
        resumes |= takes_dead_ranks_place()
    except (SupervisorError, OSError):
        resumes = True
    if resumes:
        raise ExitRequest(SHORT, f"the fast-forward could not begin: {error}") from error


def _begin_random(worker: BuiltWorker) -> None:
    """Unseeded scripts, too, begin a resumed run with the random numbers of its first attempt."""
    from supervisor.worker.random_state.patches_random import begin_temporary_names
    from supervisor.worker.random_state.random_states import (
        begin_with_first_random,
        note_first_random,
    )

    session, first_random = (
        worker.session,
        worker.rundir.replay_log(worker.rank).with_suffix(".random"),
    )
    try:
        if session.call_state.replaying or worker.is_experiment:
            seed = begin_with_first_random(first_random)
        else:
            seed = note_first_random(first_random)
        if seed is not None:
            begin_temporary_names(session, seed)
    except (OSError, SupervisorError) as error:
        session.warn(f"an unseeded script will not resume exactly: {error}")


def _patch(worker: BuiltWorker) -> None:
    from supervisor.worker.corruption.corruption_listener import CorruptionListener
    from supervisor.worker.corruption.patches_normalisation import watch_normalisation
    from supervisor.worker.files.patches_files import watch_files
    from supervisor.worker.files.patches_guard import guard_writes
    from supervisor.worker.gradients.patches_gradient_hooks import watch_gradient_hooks
    from supervisor.worker.mistakes.patches_weights import watch_weights
    from supervisor.worker.outside_draws.patches_databases import watch_databases
    from supervisor.worker.random_state.patches_random import watch_random_states, watch_seeds
    from supervisor.worker.ranks.patches_collectives import (
        watch_collectives,
        watch_messages,
        watch_wrappers,
    )
    from supervisor.worker.ranks.patches_ranks import (
        begin_file_stores_anew,
        patch_group_ends,
        watch_ranks,
    )
    from supervisor.worker.reads.patches_reads import watch_reads
    from supervisor.worker.regions.patches_regions import instrument
    from supervisor.worker.samples.patches_samples import watch_samples

    session, files = worker.session, worker.files
    collectives, counting = worker.resumption.collectives, worker.breakers("exchanges")
    instrument(session, worker.sides.loading)
    watch_reads(session.call_state, worker.sides.reads)
    watch_random_states(session, worker.sides.random)
    watch_seeds()
    guard_writes(worker.rundir.root)
    watch_weights(session.call_state, session.mistakes)
    watch_gradient_hooks(session, worker.sides.gradients)
    watch_databases(session.call_state, files.record.databases, files.record.failed)
    watch_files(session, files.sizes, files.replayed, files.record)
    patch_group_ends()
    watch_ranks(worker.several_ranks)
    watch_collectives(session, worker.sides.reads, collectives, worker.exchanges, counting)
    watch_wrappers(collectives, worker.averages, counting)
    if not worker.place.is_alone:
        begin_file_stores_anew(worker.attempt)
        watch_messages(worker.exchanges, counting)
    watch_samples(worker.samples)
    watching = worker.breakers(CorruptionListener.name)
    watch_normalisation(session.call_state, worker.watch.normalisation, watching)
    if worker.loading.is_noted:
        from supervisor.worker.loading.patches_loading import watch_fetches, watch_workers

        watch_fetches(session, worker.sides.loading, worker.loading)
        watch_workers(session, worker.sides.loading, worker.loading)


def _seed(seed: int | None) -> None:
    if seed is None:
        return
    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
