#include "next_symbol.hpp"

#include <dlfcn.h>

void* next_of_itself() {
  void* volatile found = dlsym(RTLD_NEXT, "next_of_itself");
  return found;
}
