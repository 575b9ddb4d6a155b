// A training loop without Python, over the driver alone: compiled_program [again | fresh | wait | allocate |
// clean]. It is compiled on the machine with the GPU.

#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string_view>
#include <vector>

namespace {

constexpr char kSpin[] = R"(
.version 6.4
.target sm_75
.address_size 64
.visible .entry spin(.param .u64 spin_cycles) {
  .reg .b64 %rd<5>;
  .reg .pred %p<2>;
  ld.param.u64 %rd1, [spin_cycles];
  mov.u64 %rd2, %clock64;
$again:
  mov.u64 %rd3, %clock64;
  sub.u64 %rd4, %rd3, %rd2;
  setp.lt.u64 %p1, %rd4, %rd1;
  @%p1 bra $again;
  ret;
}
)";

template <typename Function>
void find(void* driver, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(driver, name));
  if (function == nullptr) std::fprintf(stderr, "the driver has no %s\n", name), std::exit(1);
}

void check(int code) {
  if (code != 0) std::fprintf(stderr, "the driver failed with %d\n", code), std::exit(1);
}

struct Gpu {
  int (*init)(unsigned);
  int (*retain)(void**, int);
  int (*set_current)(void*);
  int (*load)(void**, const void*);
  int (*get_function)(void**, void*, const char*);
  int (*allocate)(std::uint64_t*, std::size_t);
  int (*free)(std::uint64_t);
  int (*allocate_host)(void**, std::size_t, unsigned);
  int (*copy)(std::uint64_t, const void*, std::size_t);
  int (*copy_async)(std::uint64_t, const void*, std::size_t, void*);
  int (*synchronize)(void*);
  int (*launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**,
                void**);
  void* spin = nullptr;

  Gpu() {
    void* const driver = ::dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == nullptr) std::fprintf(stderr, "%s\n", ::dlerror()), std::exit(1);
    find(driver, "cuInit", init);
    find(driver, "cuDevicePrimaryCtxRetain", retain);
    find(driver, "cuCtxSetCurrent", set_current);
    find(driver, "cuModuleLoadData", load);
    find(driver, "cuModuleGetFunction", get_function);
    find(driver, "cuMemAlloc_v2", allocate);
    find(driver, "cuMemFree_v2", free);
    find(driver, "cuMemHostAlloc", allocate_host);
    find(driver, "cuMemcpyHtoD_v2", copy);
    find(driver, "cuMemcpyHtoDAsync_v2", copy_async);
    find(driver, "cuStreamSynchronize", synchronize);
    find(driver, "cuLaunchKernel", launch);
    void* context = nullptr;
    void* module = nullptr;
    check(init(0));
    check(retain(&context, 0));
    check(set_current(context));
    check(load(&module, kSpin));
    check(get_function(&spin, module, "spin"));
  }

  /// Kernels of some 0.2 ms, on the default stream. Their grids differ, so that all five are a step.
  void train() const {
    for (unsigned i = 1; i <= 5; ++i) {
      std::uint64_t cycles = 300'000;
      void* parameters[] = {&cycles};
      check(launch(spin, i, 1, 1, 32, 1, 1, 0, nullptr, parameters, nullptr));
    }
  }
};

constexpr std::size_t kBytes = std::size_t{8} << 20;
constexpr int kSteps = 200;

struct Batch {
  explicit Batch(std::uint64_t first) : values(kBytes / 8) { std::iota(values.begin(), values.end(), first); }
  std::vector<std::uint64_t> values;
};

void send(const Gpu& gpu, std::uint64_t to, const Batch& batch) {
  check(gpu.copy(to, batch.values.data(), kBytes));
}

void wait(const Gpu& gpu) { check(gpu.synchronize(nullptr)); }

void renew(const Gpu& gpu, std::uint64_t& memory) {
  check(gpu.free(memory));
  check(gpu.allocate(&memory, kBytes));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view mistake = argc > 1 ? argv[1] : "clean";
  Gpu gpu;
  std::uint64_t memory = 0;
  check(gpu.allocate(&memory, kBytes));
  Batch batch(1);
  for (int i = 0; i < kSteps; ++i) {
    if (mistake == "fresh") batch = Batch(static_cast<std::uint64_t>(i));
    if (mistake == "again" || mistake == "fresh") send(gpu, memory, batch);
    if (mistake == "allocate") renew(gpu, memory);
    gpu.train();
    if (mistake == "wait") wait(gpu);
  }
  check(gpu.synchronize(nullptr));
  std::printf("done\n");
}
