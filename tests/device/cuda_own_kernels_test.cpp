#include "device/contract_suite.hpp"

#include <filesystem>

namespace penstock::testing {

namespace {

std::string own_kernels_driver() {
  return std::filesystem::path(PENSTOCK_FAKE_DRIVER).replace_filename("libfake_cuda_own_kernels.so");
}

std::string fibers_are_no_threads() {
#if defined(__SANITIZE_THREAD__)
  return "waived: the thread sanitizer cannot follow fibers";
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
  return "waived: the thread sanitizer cannot follow fibers";
#endif
#endif
  return {};
}

}  // namespace

/// The contract again, over a driver that runs the kernels' own source on the CPU.
INSTANTIATE_TEST_SUITE_P(
    FakeCudaOwnKernels, Contract,
    ::testing::Values(ContractDevice{
        .name = "cuda",
        .open = [] { return Device::open("cuda:0", {.driver_library = own_kernels_driver()}); },
        .waived = fibers_are_no_threads}),
    contract_name);

}  // namespace penstock::testing
