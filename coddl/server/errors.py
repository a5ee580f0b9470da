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
    """The journal has records that this version can't read."""


class PoolTaken(UserError):
    """Another server works on the same journal."""


class BadFolder(UserError):
    """The state folder can't be created or written to."""


class CannotListen(UserError):
    """The address is in use, or is not an address of this machine."""


class KeyReused(UserError):
    """An Idempotency-Key was used before for a different request."""


class Unauthorized(UserError):
    """The token is missing or wrong."""


class Forbidden(UserError):
    """A request that changes something, with a token that may only read."""


class HostRefused(UserError):
    """A request with a host name that is not one of this server's."""


class TooLarge(UserError):
    """The request is larger than allowed."""


class WrongHash(UserError):
    """An archive's content does not match the hash in its name."""
