#pragma once

#include <cstdint>

// Calls that a program of the tests makes in place of CUDA's. Each takes the time that it says, in
// nanoseconds, on a clock that is moved on and not waited for.
extern "C" {
/// cuInit: loads the library of CUDA_INJECTION64_PATH, and calls its InitializeInjection.
void fake_init();
/// cudaMemcpyAsync to the device; from pageable memory it takes as long as the copy.
void fake_copy(std::uint64_t bytes, int pageable);
/// The same, from memory that is there; without the runtime, it is cuMemcpyHtoDAsync.
void fake_copy_from(const void* source, std::uint64_t bytes, int pageable, int through_runtime);
/// cudaMemcpyAsync of 4 bytes to the host, and cudaStreamSynchronize.
void fake_item();
/// cudaLaunchKernel.
void fake_launch(const char* kernel, std::uint64_t nanoseconds);
/// The same; without the runtime, it is cuLaunchKernel.
void fake_launch_from(const char* kernel, std::uint64_t nanoseconds, int through_runtime);
/// The same, on a stream.
void fake_launch_on(std::uint32_t stream, const char* kernel, std::uint64_t nanoseconds, int through_runtime);
/// cudaStreamCreate: the default stream and it wait for each other, as all work here does.
std::uint32_t fake_create_stream();
void fake_synchronize();
/// cudaStreamSynchronize that really takes so long.
void fake_sleep(std::uint64_t nanoseconds);
/// nvtxRangePush and, without a name, nvtxRangePop. Of a library: with a domain of its own.
void fake_range(const char* name, std::uint32_t number, int library);
void fake_pin();
/// cudaMalloc.
void fake_allocate();
/// Time passes on the host.
void fake_compute(std::uint64_t nanoseconds);
/// From now on, time in which the program does not run is none, so that a busy machine changes no figure.
/// Call it before fake_init.
void fake_leave_out_waits();
/// As from another profiler: the next cuptiSubscribe is refused.
int fake_subscribers();
/// Activities that are recorded: a bit for each kind.
std::uint64_t fake_activities();
/// Calls of cuptiActivityFlushAll that have begun.
int fake_flushes();
}
