// The C++ programs of the doctor's museum: museum_programs NAME.

#include <cuda_runtime.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>

namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr int kSteps = 100;
constexpr std::size_t kBytes = 8 << 20;
constexpr int kPieces = 64;
constexpr cudaMemcpyKind kToGpu = cudaMemcpyHostToDevice;

void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s\n", cudaGetErrorString(error));
  std::exit(1);
}

/// Takes a time, whatever the GPU's clock is. Each `Part` is another kernel, as those of a model are.
template <int Part>
__global__ void compute(const float* input, float* output, unsigned long long nanoseconds) {
  unsigned long long begin = 0;
  unsigned long long now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - begin < nanoseconds);
  output[threadIdx.x] += input[threadIdx.x];
}

/// Memory of the host and the GPU, and a model whose step takes a millisecond.
struct Model {
  float* pageable = static_cast<float*>(std::malloc(kBytes));
  float* pinned = nullptr;
  float* input = nullptr;
  float* output = nullptr;

  Model() {
    std::memset(pageable, 1, kBytes);
    check(cudaMallocHost(&pinned, kBytes));
    std::memset(pinned, 1, kBytes);
    check(cudaMalloc(&input, kBytes));
    check(cudaMalloc(&output, kBytes));
    check(cudaMemset(input, 0, kBytes));
    check(cudaMemset(output, 0, kBytes));
  }

  void train(cudaStream_t stream = nullptr, const float* batch = nullptr) const {
    const float* const from = batch == nullptr ? input : batch;
    compute<0><<<8, 256, 0, stream>>>(from, output, 400'000);
    compute<1><<<8, 256, 0, stream>>>(from, output, 500'000);
    compute<2><<<8, 256, 0, stream>>>(from, output, 100'000);
    check(cudaGetLastError());
  }
};

void pageable(Model& model) {
  for (int i = 0; i < kSteps; ++i) {
    check(cudaMemcpy(model.input, model.pageable, kBytes, kToGpu));
    model.train();
  }
}

void async(Model& model) {
  for (int i = 0; i < kSteps; ++i) {
    check(cudaMemcpyAsync(model.input, model.pageable, kBytes, kToGpu));
    model.train();
  }
}

void pinned(Model& model) {
  for (int i = 0; i < kSteps; ++i) {
    check(cudaMemcpyAsync(model.input, model.pinned, kBytes, kToGpu));
    model.train();
  }
}

void small(Model& model) {
  constexpr std::size_t kPiece = 4096;
  for (int i = 0; i < kSteps; ++i) {
    for (int piece = 0; piece < kPieces; ++piece) {
      const std::size_t at = piece * kPiece;
      check(cudaMemcpyAsync(model.input + at, model.pinned + at, kPiece, kToGpu));
    }
    model.train();
  }
}

void one_copy(Model& model) {
  for (int i = 0; i < kSteps; ++i) {
    check(cudaMemcpyAsync(model.input, model.pinned, kPieces * 4096, kToGpu));
    model.train();
  }
}

void device_synchronize(Model& model) {
  for (int i = 0; i < kSteps; ++i) {
    model.train();
    check(cudaDeviceSynchronize());
  }
}

void no_synchronize(Model& model) {
  for (int i = 0; i < kSteps; ++i) model.train();
}

void read_loss(Model& model) {
  float loss = 0;
  for (int i = 0; i < kSteps; ++i) {
    model.train();
    check(cudaMemcpy(&loss, model.output, sizeof loss, cudaMemcpyDeviceToHost));
  }
}

void device_memory(Model& model) {
  for (int i = 0; i < kSteps; ++i) {
    float* scratch = nullptr;
    check(cudaMalloc(&scratch, kBytes));
    model.train(nullptr, scratch);
    check(cudaFree(scratch));
  }
}

void pinned_memory(Model& model) {
  for (int i = 0; i < kSteps; ++i) {
    float* batch = nullptr;
    check(cudaMallocHost(&batch, kBytes));
    check(cudaMemcpyAsync(model.input, batch, kBytes, kToGpu));
    model.train();
    check(cudaFreeHost(batch));
  }
}

/// Each batch is copied while the one before is used, if the two streams may work at once.
void feed_two_buffers(Model& model, cudaStream_t copies, cudaStream_t work) {
  float* batches[2] = {model.input, nullptr};
  check(cudaMalloc(&batches[1], kBytes));
  cudaEvent_t copied[2];
  cudaEvent_t used[2];
  for (int i = 0; i < 2; ++i) {
    check(cudaEventCreateWithFlags(&copied[i], cudaEventDisableTiming));
    check(cudaEventCreateWithFlags(&used[i], cudaEventDisableTiming));
  }
  for (int i = 0; i < kSteps; ++i) {
    const int slot = i % 2;
    check(cudaStreamWaitEvent(copies, used[slot]));
    check(cudaMemcpyAsync(batches[slot], model.pinned, kBytes, kToGpu, copies));
    check(cudaEventRecord(copied[slot], copies));
    check(cudaStreamWaitEvent(work, copied[slot]));
    model.train(work, batches[slot]);
    check(cudaEventRecord(used[slot], work));
  }
}

/// Clean.
void two_buffers(Model& model) {
  cudaStream_t copies = nullptr;
  cudaStream_t work = nullptr;
  check(cudaStreamCreateWithFlags(&copies, cudaStreamNonBlocking));
  check(cudaStreamCreateWithFlags(&work, cudaStreamNonBlocking));
  feed_two_buffers(model, copies, work);
}

/// The kernels are on the default stream, and that of the copies waits for them.
void blocking_stream(Model& model) {
  cudaStream_t copies = nullptr;
  check(cudaStreamCreate(&copies));
  feed_two_buffers(model, copies, nullptr);
}

/// The copies are on the default stream. They wait for the kernels, and these for them, so it needs no
/// events.
void default_stream(Model& model) {
  cudaStream_t work = nullptr;
  check(cudaStreamCreate(&work));
  float* batches[2] = {model.input, nullptr};
  check(cudaMalloc(&batches[1], kBytes));
  check(cudaMemcpy(batches[0], model.pinned, kBytes, kToGpu));
  for (int i = 0; i < kSteps; ++i) {
    check(cudaMemcpyAsync(batches[(i + 1) % 2], model.pinned, kBytes, kToGpu));
    model.train(work, batches[i % 2]);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string, std::function<void(Model&)>> programs{
      {"pageable", pageable},
      {"async", async},
      {"pinned", pinned},
      {"small", small},
      {"one_copy", one_copy},
      {"device_synchronize", device_synchronize},
      {"no_synchronize", no_synchronize},
      {"read_loss", read_loss},
      {"device_memory", device_memory},
      {"pinned_memory", pinned_memory},
      {"two_buffers", two_buffers},
      {"blocking_stream", blocking_stream},
      {"default_stream", default_stream}};
  const auto program = programs.find(argc == 2 ? argv[1] : "");
  if (program == programs.end()) {
    std::fprintf(stderr, "there is no program of this name\n");
    return 2;
  }
  check(cudaFree(nullptr));  // starts CUDA
  // Takes its turn, as those in Python do.
  const char* const path = std::getenv("MUSEUM_TURN");
  const int turn = path == nullptr ? -1 : ::open(path, O_RDONLY);
  const auto asked = Clock::now();
  if (const char* const ready = std::getenv("MUSEUM_READY")) ::close(::open(ready, O_WRONLY | O_CREAT, 0600));
  if (turn >= 0) ::flock(turn, LOCK_EX);
  const auto taken = Clock::now();
  Model model;
  program->second(model);
  check(cudaDeviceSynchronize());
  if (turn < 0) return 0;
  ::flock(turn, LOCK_UN);
  std::printf("museum: waited %.1f s, had its turn for %.1f s\n", Seconds(taken - asked).count(),
              Seconds(Clock::now() - taken).count());
  return 0;
}
