"""The errors of the server, and the HTTP status each is answered with.

UserError                 422
├── JournalFull           507   nothing was written, nothing has changed
├── JournalUnreadable           the server does not start
├── PoolTaken                   the server does not start: another one has the state folder
├── CannotListen                the server does not start
├── KeyReused             422   an Idempotency-Key that came with another request before
├── Unauthorized          401
├── Forbidden             403   a token that may only read
├── HostRefused           421
├── TooLarge              413
├── WrongHash             422   an archive whose bytes are not what its name says
├── NotFound              404   of `core.pool`, as is the next
└── Conflict              409
"""

from coddl.core.errors import UserError


class JournalFull(UserError):
    """The journal can't be written to."""


class JournalUnreadable(UserError):
    """The journal holds what this version can't read."""


class PoolTaken(UserError):
    """Another server works on the same journal."""


class BadFolder(UserError):
    """The state folder can't be made, or not be written to."""


class CannotListen(UserError):
    """The address is in use, or not ours."""


class KeyReused(UserError):
    """An Idempotency-Key came with a request that is not the one it came with before."""


class Unauthorized(UserError):
    """No token, or another one."""


class Forbidden(UserError):
    """A request that changes something, with a token that may only read."""


class HostRefused(UserError):
    """A request to a name by which nobody reaches this server."""


class TooLarge(UserError):
    """A request with more bytes than it may have."""


class WrongHash(UserError):
    """An archive's bytes are not what its name says."""
