#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int cuDriverGetVersion(int* version) {
  *version = 11040;
  return 0;
}
