#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int cuDriverGetVersion(int*) { return 34; }

EXPORT int cuGetProcAddress_v2(const char*, void**, int, unsigned long long, int*) { return 34; }
