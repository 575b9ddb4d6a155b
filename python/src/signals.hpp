#pragma once

namespace penstock::python {

/// Throws the exception of a signal's handler, such as Ctrl-C. Called without the interpreter's lock.
void hear_signals();

}  // namespace penstock::python
