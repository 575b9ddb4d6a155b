#include "device/cuda/cuda_backend.hpp"
#include "device/cuda/driver.hpp"
#include "device/cuda_fixture.hpp"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <numeric>
#include <thread>
#include <vector>

namespace penstock::testing {

namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

using CudaOpen = CudaTest;

TEST_F(CudaOpen, DescribesTheDevice) {
  const DeviceInfo info = open("cuda:1").info();
  EXPECT_EQ(info.spec, "cuda:1");
  EXPECT_EQ(info.backend, "cuda");
  EXPECT_EQ(info.index, 1);
  EXPECT_EQ(info.name, "Fake GPU");
  EXPECT_EQ(info.uuid, "GPU-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadae01");
  EXPECT_EQ(info.driver, "12.8");
  EXPECT_EQ(info.pci_bus_id, "ffff:01:00.0");
  EXPECT_EQ(info.compute_major, 9);
  EXPECT_EQ(info.compute_minor, 0);
  EXPECT_EQ(info.multiprocessors, 4u);
  EXPECT_EQ(info.memory_bytes, std::size_t{1} << 30);
  EXPECT_EQ(info.numa_node, -1);
}

TEST_F(CudaOpen, InventoryListsDevicesWithoutOpeningThem) {
  const DeviceInventory inventory = Device::inventory({.driver_library = PENSTOCK_FAKE_DRIVER});
  ASSERT_EQ(inventory.devices.size(), 3u);
  EXPECT_EQ(inventory.devices[0].spec, "cuda:0");
  EXPECT_EQ(inventory.devices[1].spec, "cuda:1");
  EXPECT_EQ(inventory.devices[2].backend, "host");
  EXPECT_TRUE(inventory.missing.empty());
  EXPECT_EQ(fake.calls("cuDevicePrimaryCtxRetain"), 0);
}

TEST_F(CudaOpen, InventoryKeepsTheDevicesThatAnswer) {
  fake.fail("cuDeviceGetName", 1, 999);
  const DeviceInventory inventory = Device::inventory({.driver_library = PENSTOCK_FAKE_DRIVER});
  ASSERT_EQ(inventory.devices.size(), 2u);
  EXPECT_EQ(inventory.devices[0].spec, "cuda:1");
  ASSERT_EQ(inventory.missing.size(), 1u);
  EXPECT_THAT(inventory.missing[0], AllOf(HasSubstr("cuda:0"), HasSubstr("CUDA_ERROR_UNKNOWN")));
}

TEST_F(CudaOpen, MissingDriverIsExplained) {
  const DeviceOptions options{.driver_library = "/nowhere/libcuda.so.1"};
  const DeviceError error = device_error([&] { static_cast<void>(Device::open("cuda:0", options)); });
  EXPECT_EQ(error.name(), "PENSTOCK_NO_DRIVER");
  EXPECT_THAT(error.what(), AllOf(StartsWith("There is no NVIDIA driver"), HasSubstr("install"),
                                  HasSubstr("\"host\""), HasSubstr("/nowhere/libcuda.so.1")));
  EXPECT_THAT(error.what(), EndsWith("(dlopen failed with PENSTOCK_NO_DRIVER, 0)"));
  const DeviceInventory inventory = Device::inventory(options);
  EXPECT_EQ(inventory.devices.size(), 1u);
  ASSERT_EQ(inventory.missing.size(), 1u);
  EXPECT_THAT(inventory.missing[0], HasSubstr("/nowhere/libcuda.so.1"));
  EXPECT_EQ(Device::open("auto", options).info().backend, "host");
}

TEST_F(CudaOpen, DriverWithoutTheNeededLookupIsTooOld) {
  const DeviceOptions options{.driver_library = library("libfake_cuda_old.so")};
  const DeviceError error = device_error([&] { static_cast<void>(Device::open("cuda:0", options)); });
  EXPECT_EQ(error.name(), "PENSTOCK_DRIVER_TOO_OLD");
  EXPECT_THAT(error.what(), AllOf(HasSubstr("11.4"), HasSubstr("12.0"), HasSubstr("update")));
  EXPECT_THROW(static_cast<void>(Device::open("auto", options)), DeviceError);
}

TEST_F(CudaOpen, DriverThatSaysItIsOldIsTooOld) {
  const DriverLink link;
  fake.set_version(11080);
  const DeviceError error = device_error([&] { static_cast<void>(Device::open("cuda:0", link.options())); });
  EXPECT_EQ(error.name(), "PENSTOCK_DRIVER_TOO_OLD");
  EXPECT_THAT(error.what(), AllOf(HasSubstr("11.8"), HasSubstr("12.0")));
  fake.set_version(12000);
  EXPECT_EQ(Device::open("cuda:0", link.options()).info().driver, "12.0");
}

TEST_F(CudaOpen, BatchedCopiesAreWhereTheDriverHasThem) {
  const auto copy_each = [&](const Device& device) {
    const Stream stream = device.create_stream();
    Backend& backend = device.backend();
    auto* const locked = static_cast<std::byte*>(backend.host_allocate(8192));
    auto* const there = static_cast<std::byte*>(backend.device_allocate(8192));
    std::iota(reinterpret_cast<std::uint8_t*>(locked), reinterpret_cast<std::uint8_t*>(locked) + 4096, 0);
    const CopyPiece pieces[] = {
        {locked, there, 1000}, {locked + 1000, there + 1000, 0}, {locked + 1000, there + 1000, 3096}};
    backend.copy_each(pieces, CopyDirection::h2d, stream.native());
    backend.copy(locked + 4096, there, 4096, CopyDirection::d2h, stream.native());
    stream.synchronize();
    EXPECT_EQ(std::memcmp(locked, locked + 4096, 4096), 0);
    backend.device_free(there);
    backend.host_free(locked);
  };
  const Device newer = open();
  EXPECT_TRUE(newer.info().batched_copies);
  copy_each(newer);
  EXPECT_EQ(fake.calls("cuMemcpyBatchAsync"), 1);
  EXPECT_EQ(fake.calls("cuMemcpyHtoDAsync"), 0);
  const DriverLink link;
  fake.set_version(12070);
  const Device older = Device::open("cuda:0", link.options());
  EXPECT_FALSE(older.info().batched_copies);
  copy_each(older);
  EXPECT_EQ(fake.calls("cuMemcpyBatchAsync"), 1);
  EXPECT_EQ(fake.calls("cuMemcpyHtoDAsync"), 2);
}

TEST_F(CudaOpen, ElapsedTimesAreReadByAnyDriver) {
  const auto elapsed = [](const Device& device) {
    const Stream stream = device.create_stream();
    Event begin = device.create_event(EventTiming::on);
    Event end = device.create_event(EventTiming::on);
    begin.record(stream);
    stream.occupy(2e-3);
    end.record(stream);
    end.synchronize();
    return end.seconds_since(begin);
  };
  const DriverLink link;
  EXPECT_GE(elapsed(Device::open("cuda:0", link.options())), 2e-3);
  fake.set_version(12070);
  const DriverLink other;
  EXPECT_GE(elapsed(Device::open("cuda:0", other.options())), 2e-3);
}

TEST_F(CudaOpen, StubIsNoDriver) {
  const DeviceOptions options{.driver_library = library("libfake_cuda_stub.so")};
  const DeviceError error = device_error([&] { static_cast<void>(Device::open("cuda:0", options)); });
  EXPECT_EQ(error.name(), "CUDA_ERROR_STUB_LIBRARY");
  EXPECT_EQ(error.code(), 34);
  EXPECT_THAT(error.what(), HasSubstr("library path"));
  EXPECT_EQ(Device::open("auto", options).info().backend, "host");
}

TEST_F(CudaOpen, NoDeviceFallsBackOnlyForAuto) {
  const DriverLink link;
  fake.set_devices(0);
  const DeviceError error = device_error([&] { static_cast<void>(Device::open("cuda:0", link.options())); });
  EXPECT_EQ(error.name(), "CUDA_ERROR_NO_DEVICE");
  EXPECT_EQ(error.call(), "cuInit");
  EXPECT_THAT(error.what(),
              AllOf(StartsWith("No CUDA-capable device is detected. The NVIDIA driver is there"),
                    HasSubstr("\"host\"")));
  EXPECT_EQ(Device::open("auto", link.options()).info().backend, "host");
  const DeviceInventory inventory = Device::inventory(link.options());
  EXPECT_EQ(inventory.devices.size(), 1u);
  EXPECT_EQ(inventory.missing.size(), 1u);
}

TEST_F(CudaOpen, FailingDriverIsNotHiddenByAuto) {
  const DriverLink link;
  fake.set_init_result(803);
  const DeviceError error = device_error([&] { static_cast<void>(Device::open("auto", link.options())); });
  EXPECT_EQ(error.name(), "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH");
  EXPECT_THAT(error.what(), HasSubstr("reboot"));
  fake.set_init_result(0);
  EXPECT_EQ(Device::open("auto", link.options()).info().backend, "cuda");
}

TEST_F(CudaOpen, OnlyADriverThatIsNotThereMeansNoGpu) {
  const auto means = [](const char* name, int code) { return means_no_gpu(DeviceError(name, "", code, "")); };
  EXPECT_TRUE(means(cuda::kNoDriver, 0));
  EXPECT_TRUE(means("CUDA_ERROR_NO_DEVICE", cuda::kNoDevice));
  EXPECT_FALSE(means(cuda::kNoPermission, cuda::kNoDevice));
  EXPECT_FALSE(means(cuda::kDriverTooOld, cuda::kNoDevice));
  EXPECT_FALSE(means("CUDA_ERROR_UNKNOWN", 999));
}

TEST_F(CudaOpen, ManyThreadsLoadADriverOnce) {
  const DriverLink link;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] { EXPECT_EQ(Device::open("cuda:0", link.options()).info().index, 0); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(fake.calls("cuInit"), 1);
}

TEST_F(CudaOpen, AbsentIndexNamesWhatIsThere) {
  const auto message = [&](const char* spec) {
    try {
      static_cast<void>(open(spec));
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string("opened");
  };
  EXPECT_THAT(message("cuda:2"), AllOf(HasSubstr("cuda:2"), HasSubstr("2 GPUs"), HasSubstr("cuda:1")));
  fake.set_devices(1);
  EXPECT_THAT(message("cuda:1"), AllOf(HasSubstr("cuda:1"), HasSubstr("cuda:0")));
}

TEST_F(CudaOpen, FailuresOnTheWayLeaveNothingBehind) {
  for (const char* function :
       {"cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName", "cuDeviceGetUuid", "cuDeviceGetAttribute",
        "cuDeviceTotalMem", "cuDeviceGetPCIBusId", "cuDevicePrimaryCtxRetain", "cuCtxGetCurrent",
        "cuCtxPushCurrent", "cuModuleLoadDataEx", "cuModuleGetFunction", "cuFuncLoad",
        "cuCtxGetStreamPriorityRange"}) {
    fake.reset();
    fake.fail(function, 1, 999);
    const DeviceError error = device_error([&] { static_cast<void>(open()); });
    EXPECT_EQ(error.name(), "CUDA_ERROR_UNKNOWN") << function;
    EXPECT_EQ(fake.live_contexts(), 0) << function;
    EXPECT_EQ(fake.live_modules(), 0) << function;
  }
  EXPECT_EQ(open().info().backend, "cuda");
  EXPECT_EQ(fake.live_contexts(), 0);
  EXPECT_EQ(fake.live_modules(), 0);
}

TEST_F(CudaOpen, NoKernelIsLeftToBeLoadedAtItsFirstLaunch) {
  EXPECT_EQ(open().info().backend, "cuda");
  EXPECT_GT(fake.calls("cuFuncLoad"), 0);
  EXPECT_EQ(fake.calls("cuFuncLoad"), fake.calls("cuModuleGetFunction"));
  fake.reset();
  fake.set_version(12030);  // lacks it
  EXPECT_EQ(open().info().backend, "cuda");
}

TEST_F(CudaOpen, MissingCompilerIsExplained) {
  fake.fail("cuModuleLoadDataEx", 1, 221);
  EXPECT_THAT(device_error([&] { static_cast<void>(open()); }).what(), HasSubstr("libnvidia-ptxjitcompiler"));
}

TEST_F(CudaOpen, DeviceFilesThatMayNotBeOpenedAreNamed) {
  const std::filesystem::path directory =
      std::filesystem::temp_directory_path() / ("penstock-dev-" + std::to_string(::getpid()));
  std::filesystem::create_directory(directory);
  EXPECT_EQ(cuda::device_file_refusal(directory), "");
  std::ofstream(directory / "nvidiactl") << "";
  EXPECT_EQ(cuda::device_file_refusal(directory), "");
  std::filesystem::permissions(directory, std::filesystem::perms::all);
  ::chmod((directory / "nvidiactl").c_str(), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    if (::geteuid() == 0 && ::seteuid(65534) != 0) ::_exit(2);
    const std::string refusal = cuda::device_file_refusal(directory);
    ::_exit(refusal.find("nvidiactl") != std::string::npos && refusal.find("permission") != std::string::npos
                ? 0
                : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  std::filesystem::remove_all(directory);
}

}  // namespace

}  // namespace penstock::testing
