"""Runners of jobs that are processes: elastic ones, and commands."""

from coddl.agent.command_runner import CommandRunner
from coddl.agent.job_runner import ElasticRunner, JobRun, JobRunner, RunListener


def process_runner(run: JobRun, listener: RunListener) -> JobRunner:
    """Make the runner of a job that trains, or of any other command, such as a precheck."""
    is_elastic = run.spec.is_elastic and not run.precheck
    return ElasticRunner(run, listener) if is_elastic else CommandRunner(run, listener)
