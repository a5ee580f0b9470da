"""A job as users write it, in YAML, JSON or flags: checked here, and turned into what a pool keeps.

`read_request` is the way in for programs that hold bare data; its errors say what, because, try.
"""

import difflib
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from coddl.core.errors import UserError
from coddl.core.pool.spec import JobSpec, Launch, Tier

NAME: Final = re.compile(r"(?=.*[^0-9])[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
NAME_RULE: Final = (
    "a name is at most 64 letters, digits, dots, dashes and underscores, and not a number"
)
VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
HASH: Final = re.compile(r"[0-9a-f]{64}")
GPUS_MAX: Final = 100_000
GPUS_MAX_UNSEEN: Final = 64  # of an elastic job, if no node has joined the pool yet


def refusal(because: str, try_: str) -> PydanticCustomError:
    """Make the error of a value that can't be, for a validator to raise."""
    return PydanticCustomError("refused", "{because}", {"because": because, "try": try_})


class Bounds(BaseModel):
    """How many devices a job may hold."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    min: int = Field(ge=1, le=GPUS_MAX)
    max: int = Field(ge=1, le=GPUS_MAX)
    requested: Annotated[int, Field(ge=1, le=GPUS_MAX)] | None = Field(
        default=None, description="What policies give it that resize no jobs; null: the maximum."
    )

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.min > self.max:
            raise refusal(
                f'"{self.min}..{self.max}" has a minimum above its maximum',
                f"{self.max}..{self.min}",
            )
        if self.requested is not None and not self.min <= self.requested <= self.max:
            raise refusal(
                f"{self.requested} GPUs are requested, which is not within {self.min}..{self.max}",
                f"{self.max} or less",
            )
        return self


def _bounds(value: object) -> object:
    """Read `4`, `"4"`, `"1..8"` or `{"min": 1, "max": 8}`."""
    if isinstance(value, Mapping | Bounds):
        return value
    found = re.fullmatch(r"\s*(\d{1,9})\s*(?:\.\.\s*(\d{1,9})\s*)?", str(value))
    if not found:
        raise refusal(f'"{value}" is neither a number nor a range', "4, or 1..8")
    least = int(found[1])
    if least < 1:
        raise refusal(f'"{value}" is less than 1 GPU', "1, or 1..8")
    return {"min": least, "max": int(found[2]) if found[2] else least}


def _words(value: object) -> object:
    """Split a command that is given as one string, as a shell would."""
    if not isinstance(value, str):
        return value
    try:
        return shlex.split(value)
    except ValueError as error:
        raise refusal(f'"{value}" is not a command: {error}', "a list of words") from None


def _text_values(value: object) -> object:
    """Take numbers as text: YAML reads `EPOCHS: 3` as one."""
    if not isinstance(value, Mapping):
        return value
    plain = {
        key: str(item) if isinstance(item, int | float) and not isinstance(item, bool) else item
        for key, item in value.items()
    }
    for key, item in plain.items():
        if not VARIABLE.fullmatch(str(key)):
            raise refusal(f'"{key}" can\'t name a variable', "NAME=value")
        if isinstance(item, str) and "\0" in item:
            raise refusal(f"the value of {key} has a zero byte in it", "text")
    return plain


def _name(value: object) -> object:
    if isinstance(value, str) and value and not NAME.fullmatch(value):
        raise refusal(f'"{value}" can\'t name a job: {NAME_RULE}', '"bert-large"')
    return value


def _hash(value: object) -> object:
    if isinstance(value, str) and value and not HASH.fullmatch(value):
        raise refusal(f'"{value}" is not a SHA-256 hash', "64 hexadecimal digits, in lower case")
    return value


Size = Annotated[int, Field(ge=1, le=GPUS_MAX)]
Word = Annotated[str, Field(max_length=10_000, pattern=r"^[^\x00]*$")]
Words = Annotated[
    tuple[Word, ...],
    BeforeValidator(_words),
    WithJsonSchema({"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "string"}]}),
]
Gpus = Annotated[
    Bounds,
    BeforeValidator(_bounds),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1},
                {"type": "string", "pattern": r"^\d+(\.\.\d+)?$", "examples": ["1..8"]},
                {
                    "type": "object",
                    "properties": {
                        "min": {"type": "integer", "minimum": 1},
                        "max": {"type": "integer", "minimum": 1},
                        "requested": {"type": "integer", "minimum": 1},
                    },
                    "required": ["min", "max"],
                    "additionalProperties": False,
                },
            ]
        }
    ),
]


class JobRequest(BaseModel):
    """A training job, as it is submitted."""

    model_config = ConfigDict(extra="forbid", frozen=True, title="CoDDL job")

    name: Annotated[str, BeforeValidator(_name)] = Field(
        "", description="Name of the job. Default: the name of the script or command."
    )
    script: Word = Field(
        "",
        max_length=4096,
        description="Python script in the submitted directory; or give a command.",
    )
    args: Words = Field((), description="Arguments of the script.")
    command: Words = Field((), description="Any command, instead of a script.")
    tier: Tier | None = Field(
        None,
        description="elastic: calls coddl.prepare, and is resized while it runs (default for a .py "
        "script); restartable: saves its own state at SIGTERM; opaque: any command.",
    )
    gpus: Gpus | None = Field(
        None,
        description="Number of GPUs: 4, or 1..8. Default: 1; for an elastic script, 1 to all GPUs "
        "of the pool. Policies that resize no jobs give it what is requested, by default the "
        "maximum.",
    )
    priority: int = Field(
        0, ge=-1_000_000, le=1_000_000, description="Jobs with a higher priority are served first."
    )
    group: str = Field(
        "",
        max_length=64,
        pattern=r"^[^\s\x00]*$",
        description="Group of jobs, such as a sweep, that fair policies treat as one.",
    )
    weight: float = Field(
        1.0, gt=0, le=1_000, description="Relative length of its time slices, for gandiva."
    )
    env: Annotated[dict[str, str], BeforeValidator(_text_values)] = Field(
        default_factory=dict, description="Environment variables for its processes."
    )
    python: str = Field(
        "", max_length=4096, description="Interpreter of the script. Default: the agent's own."
    )
    code: Annotated[str, BeforeValidator(_hash)] = Field(
        "", description="SHA-256 of the uploaded archive of the directory; empty: none."
    )
    folder: str = Field(
        ".", max_length=4096, description="Working directory, within the submitted directory."
    )
    precheck: Words = Field(
        (), description="Command that must succeed on 1 GPU before the job gets its GPUs."
    )
    user: str = Field(
        "", max_length=64, pattern=r"^[^\s\x00/]*$", description="User that submits it."
    )
    step_s: dict[Size, Annotated[float, Field(gt=0, le=1e9)]] = Field(
        default_factory=dict, description="Seconds per iteration, by number of GPUs."
    )
    max_failures: int = Field(
        0, ge=0, le=1_000, description="Number of its own failures after which it is retried."
    )
    grace_s: float = Field(
        30.0, ge=0, le=86_400, description="Seconds from the notice to stop until it is killed."
    )
    checkpoint_every_s: float = Field(
        60.0, ge=0.1, le=1e7, description="Seconds between durable checkpoints."
    )
    start_within_s: float = Field(
        7200.0,
        ge=1,
        le=1e7,
        description="Seconds from its start to its first step, after which it is restarted.",
    )
    watchdog_s: float = Field(
        1800.0,
        ge=1,
        le=1e7,
        description="Seconds for which a worker's loop may be silent before it is replaced.",
    )

    @model_validator(mode="after")
    def _hangs_together(self) -> Self:
        if bool(self.script) == bool(self.command):
            given = "both a script and a command are" if self.script else "neither is"
            raise refusal(
                f"a job is either a script or a command, and {given} given",
                "coddl submit train.py; in a file, script: train.py",
            )
        if self.args and self.command:
            raise refusal("arguments are for scripts", "put the arguments into the command")
        if self.the_tier == "elastic" and not self.script:
            raise refusal(
                "an elastic job is a Python script that calls coddl.prepare, and this is a command",
                "script: train.py, or tier: restartable",
            )
        if self.gpus and self.the_tier != "elastic" and self.gpus.min != self.gpus.max:
            raise refusal(
                f"its tier is {self.the_tier}, so it can't be resized while it runs, "
                f"and gpus is {self.gpus.min}..{self.gpus.max}",
                f"gpus: {self.gpus.max}, or tier: elastic",
            )
        self._check_folder()
        return self

    def _check_folder(self) -> None:
        path = PurePosixPath(self.folder)
        if ".." in path.parts or (self.code and path.is_absolute()):
            raise refusal(
                f'folder "{self.folder}" is outside of the submitted directory', "a path within it"
            )

    @property
    def the_tier(self) -> Tier:
        """What was asked for, or what follows from a script's or a command's nature."""
        return self.tier or ("elastic" if self.script.endswith(".py") else "opaque")

    @property
    def the_name(self) -> str:
        """The name it was given, or one after what it runs."""
        if self.name:
            return self.name
        stem = PurePosixPath(self.script or self.command[0]).stem
        name = re.sub(r"[^A-Za-z0-9._-]+|^[._-]+", "-", stem).strip("-._")[:64]
        return name if NAME.fullmatch(name) else f"job-{name}"[:64].strip("-")

    def to_spec(self, pool_devices: int) -> JobSpec:
        """Return the job as a pool with `pool_devices` devices stores it."""
        most = (pool_devices or GPUS_MAX_UNSEEN) if self.the_tier == "elastic" else 1
        bounds = self.gpus or Bounds(min=1, max=most)
        return JobSpec(
            name=self.the_name,
            launch=Launch(
                argv=self._argv(),
                python=self.python,
                env=dict(self.env),
                code=self.code,
                folder=self.folder,
                precheck=self.precheck,
                grace_s=self.grace_s,
                checkpoint_every_s=self.checkpoint_every_s,
                start_within_s=self.start_within_s,
                watchdog_s=self.watchdog_s,
            ),
            user=self.user,
            tier=self.the_tier,
            gpus_min=bounds.min,
            gpus_max=bounds.max,
            gpus_requested=bounds.requested or 0,
            priority=self.priority,
            group=self.group,
            weight=self.weight,
            step_s=dict(self.step_s),
            max_failures=self.max_failures,
        )

    def _argv(self) -> tuple[str, ...]:
        if self.command:
            return self.command
        if self.the_tier == "elastic":
            return (self.script, *self.args)
        if self.script.endswith(".py"):
            return (self.python or "python3", self.script, *self.args)
        here = self.script if "/" in self.script else f"./{self.script}"
        return (here, *self.args)


def read_request(data: object) -> JobRequest:
    """Read a job as a user wrote it; raises UserError that says what is wrong with it."""
    what = "the job cannot be accepted"
    if not isinstance(data, Mapping):
        raise UserError(what, f"it is {_kind(data)}, not fields with values", "script: train.py")
    if isinstance(name := data.get("name"), str) and name:
        what = f'job "{name}" cannot be accepted'
    try:
        return JobRequest.model_validate(data)
    except ValidationError as error:
        raise because_invalid(error, what, JobRequest) from None


def because_invalid(error: ValidationError, what: str, model: type[BaseModel]) -> UserError:
    """Say in words what a model found wrong: the first thing, and how many more there are."""
    return because_of(error.errors(include_url=False), what, tuple(model.model_fields))


def because_of(
    errors: Sequence[Mapping[str, Any]],  # Any: as pydantic gives them
    what: str,
    fields: tuple[str, ...],
) -> UserError:
    """Say what is wrong, given what pydantic has found and the fields there are."""
    first = errors[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(first["loc"][-1]), fields, n=1, cutoff=0.5)
        because = f'there is no field "{where}"'
        try_ = near[0] if near else f"one of {', '.join(fields)}"
    elif first["type"] == "refused":
        because = f"{where}: {first['msg']}" if where else first["msg"]
        try_ = str(first["ctx"]["try"])
    elif first["type"] == "json_invalid":
        because, try_ = f"it is not JSON: {first['ctx']['error']}", '{"script": "train.py"}'
    elif first["type"] == "missing":
        because, try_ = f"{where} is missing", f"{where}: …"
    else:
        said = re.sub(r"^(Input|String|Value|List) ", "", first["msg"])
        because = f"{where} {said}, and is {_shown(first['input'])}"
        try_ = f"another {where.split('.')[0]}"
    if len(errors) > 1:
        because += f" (and {len(errors) - 1} more)"
    return UserError(what, because, try_)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _kind(value: object) -> str:
    kinds: dict[type, Literal["nothing", "a list", "text", "a number"]] = {
        type(None): "nothing",
        list: "a list",
        str: "text",
        int: "a number",
        float: "a number",
    }
    return kinds.get(type(value), "something else")


def schema() -> dict[str, Any]:  # Any: JSON
    """Return the JSON Schema of a job as users write it, for editors and checkers."""
    found = JobRequest.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found}
