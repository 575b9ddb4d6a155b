#include <cstdio>

// What the recorder asks the driver itself.
extern "C" int cuDeviceGetName(char* name, int bytes, int device);

int cuDeviceGetName(char* name, int bytes, int device) {
  std::snprintf(name, static_cast<std::size_t>(bytes), "Fake GPU %d", device);
  return 0;
}
