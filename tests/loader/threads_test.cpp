#include "support/threads.hpp"

#include "loader/loader_fixture.hpp"

#include <penstock/core/host_workers.hpp>
#include <penstock/transfer/transfer_engine.hpp>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

/// The threads that work for a device: they are few, and their names tell their work.
namespace penstock::testing {
namespace {

std::map<std::string, std::size_t> count_by_name(const std::set<pid_t>& threads) {
  std::map<std::string, std::size_t> counts;
  for (const pid_t thread : threads) {
    const std::string name = name_of(thread);
    if (name.starts_with("penstock") && name != "penstock-stream") ++counts[name];
  }
  return counts;
}

class HostThreads : public LoaderTest {};
PENSTOCK_DEVICE_SUITE(HostThreads);

TEST_P(HostThreads, OneTeamServesAllOfADevice) {
  const StartedThreads started;
  const std::string test = name_of(this_thread());
  const auto bytes = random_bytes(std::size_t{1} << 20, 1);
  std::vector<std::byte> back(bytes.size());
  const Dataset dataset{{random_field("x", DType::uint8, {4096}, 64, 2)}};

  const Device device = *open_or_skip(GetParam());  // nobody else uses its workers
  Pool pinned = make_pinned_pool(device, {.segment_bytes = std::size_t{64} << 20});
  const Buffer touched = pinned.allocate(std::size_t{64} << 20);
  Pool memory = make_device_pool(device);
  const Buffer there = memory.allocate(bytes.size());
  TransferEngine engine(device);
  for (const TransferPath path : {TransferPath::staged, TransferPath::packed}) {
    engine.copy(there.data(), bytes.data(), bytes.size(), {.path = path}).synchronize();
    engine.copy(back.data(), there.data(), bytes.size(), {.path = path}).synchronize();
    EXPECT_EQ(first_difference(back, bytes), -1);
  }
  Loader first(dataset, device, {.batch_size = 16, .gather = GatherPath::host});
  Loader second(dataset, device, {.batch_size = 16, .gather = GatherPath::host});
  const Stream stream = device.create_stream();
  for (Loader* const loader : {&first, &second}) {
    while (loader->next(stream)) stream.synchronize();
  }

  // A thread has its parent's name until it runs. A driver's threads keep it.
  const auto is_new = [&](pid_t thread) { return name_of(thread) == test; };
  while (device.info().in_host_memory && std::ranges::any_of(started.get(), is_new))
    std::this_thread::yield();
  const std::size_t workers = device.host_workers()->threads() - 1;
  std::map<std::string, std::size_t> expected{
      {"penstock-loader", 2}, {"penstock-stage", 2}, {"penstock-unpack", 1}};
  if (workers > 0) expected["penstock-worker"] = workers;
  const auto named = [&] { return count_by_name(started.get()); };
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(120);
  while (named() != expected && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  EXPECT_EQ(named(), expected);
}

TEST_P(HostThreads, WhoeverIsGivenOthersDoesNotShare) {
  const auto others = device_->host_workers(3);
  EXPECT_NE(device_->host_workers(), others);
  EXPECT_EQ(device_->host_workers(), device_->host_workers());
  EXPECT_EQ(others->threads(), 3u);
  LinkProfile profile = LinkProfile::defaults(device_->info());
  profile.staging_threads = 1024;
  EXPECT_EQ(TransferEngine(*device_, {.profile = profile, .workers = others}).threads(), 3u);
  EXPECT_EQ(TransferEngine(*device_, {.threads = 2}).threads(), 2u);
  EXPECT_EQ(TransferEngine(*device_, {.workers = others, .threads = 2}).threads(), 2u);
  EXPECT_EQ(TransferEngine(*device_, {.profile = profile}).threads(), device_->host_workers()->threads());
  EXPECT_THROW(static_cast<void>(device_->host_workers(HostWorkersOptions::kMostThreads + 1)),
               InvalidArgument);
}

}  // namespace
}  // namespace penstock::testing
