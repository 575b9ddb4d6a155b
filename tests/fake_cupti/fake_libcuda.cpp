#include <cstdio>
#include <cstdlib>

// What the recorder asks the driver itself.
extern "C" {
int cuDeviceGetName(char* name, int bytes, int device);
int cuDeviceGetPCIBusId(char* id, int bytes, int device);
}

int cuDeviceGetName(char* name, int bytes, int device) {
  std::snprintf(name, static_cast<std::size_t>(bytes), "Fake GPU %d", device);
  return 0;
}

int cuDeviceGetPCIBusId(char* id, int bytes, int) {
  const char* const known = std::getenv("FAKE_BUS_ID");
  std::snprintf(id, static_cast<std::size_t>(bytes), "%s", known != nullptr ? known : "FFFF:00:00.0");
  return 0;
}
