#pragma once

/// What dlsym finds for RTLD_NEXT and the name of this very function: nothing, as no library after its own
/// has one. An interposed dlsym that is taken for the caller finds the function itself.
extern "C" void* next_of_itself();
