"""One file a policy; `registry` names them all."""
