#include "support/faulty_backend.hpp"
#include "support/wrong_bytes_backend.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/core/host_workers.hpp>
#include <penstock/link/link_measurement.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <bit>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace penstock {
namespace {

using testing::Entry;
using testing::FaultyBackend;
using testing::LiveHandles;
using testing::WrongBytesBackend;
using Curve = LinkProfile::Curve;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

/// The least that measures everything: small copies, two repetitions.
LinkMeasurementOptions hasty(std::size_t max_bytes = 64 * kKiB) {
  return {.max_bytes = max_bytes, .quick = true, .repetitions = 2, .seconds = 1e-9, .progress = {}};
}

void expect_sound(const LinkSeries& series) {
  for (const auto& point : series.points) {
    const Summary& seconds = point.seconds;
    EXPECT_GE(seconds.repetitions, 2u) << series.name;
    EXPECT_GT(seconds.minimum, 0) << series.name;
    EXPECT_LE(seconds.minimum, seconds.median) << series.name;
    EXPECT_LE(seconds.median, seconds.p99) << series.name;
  }
}

TEST(LinkMeasurement, HasEverySizeOfEveryCurve) {
  const LinkMeasurement measurement = measure_link(Device::open("host"), hasty(256 * kKiB));
  const std::vector<std::size_t> sizes{4096, 8192, 16384, 32768, 65536, 131072, 262144};
  const auto bytes_of = [](const auto& points) {
    std::vector<std::size_t> bytes;
    for (const auto& point : points) bytes.push_back(point.bytes);
    return bytes;
  };

  for (int i = 0; i <= static_cast<int>(Curve::device_d2d); ++i) {
    const auto curve = static_cast<Curve>(i);
    const LinkSeries* series = measurement.find(curve_name(curve));
    ASSERT_NE(series, nullptr) << curve_name(curve);
    EXPECT_EQ(bytes_of(series->points), sizes);
    expect_sound(*series);
    EXPECT_EQ(bytes_of(measurement.profile.curves.at(curve)), sizes);
  }
  EXPECT_EQ(measurement.series.size(), 7u + 2u + 3u);
}

TEST(LinkMeasurement, GathersSamplesOfEachSizeByEachPath) {
  const LinkMeasurement measurement = measure_link(Device::open("host"), hasty(256 * kKiB));
  const LinkProfile& profile = measurement.profile;
  for (const auto& [gather, points] : profile.gathers) {
    const LinkSeries* series = measurement.find("gather_" + std::string(gather_name(gather)));
    ASSERT_NE(series, nullptr);
    expect_sound(*series);
    ASSERT_EQ(points.size(), 5U);  // up to a quarter of a slot, which has a quarter of the capacity
    for (std::size_t p = 0; p < points.size(); ++p) {
      EXPECT_EQ(points[p].bytes, std::size_t{64} << (2 * p));
      EXPECT_EQ(points[p].seconds, series->points[p].seconds.median);
    }
  }
  EXPECT_EQ(profile.gathers.size(), 2U);
}

TEST(LinkMeasurement, GathersBatchesOfSeveralSizesOnTheHost) {
  const LinkMeasurement measurement = measure_link(Device::open("host"), hasty(256 * kKiB));
  const LinkSeries* series = measurement.find("gather_host");
  ASSERT_NE(series, nullptr);
  expect_sound(*series);
  const auto& batches = measurement.profile.host_gathers;
  std::vector<std::pair<std::size_t, std::size_t>> sizes;
  for (const auto& batch : batches) sizes.emplace_back(batch.pieces, batch.bytes);
  // Samples of 64 bytes at least, in batches of a quarter of the capacity at most.
  EXPECT_THAT(sizes, ElementsAre(Pair(64, 16 * kKiB), Pair(64, 64 * kKiB), Pair(256, 16 * kKiB),
                                 Pair(256, 64 * kKiB), Pair(1024, 64 * kKiB)));
  ASSERT_EQ(series->points.size(), batches.size());
  for (std::size_t i = 0; i < batches.size(); ++i) {
    EXPECT_EQ(series->points[i].pieces, batches[i].pieces);
    EXPECT_EQ(series->points[i].bytes, batches[i].bytes);
    EXPECT_EQ(series->points[i].seconds.median, batches[i].seconds);
  }
}

TEST(LinkMeasurement, FillsAProfileThatCanBeStoredAndAsked) {
  const Device device = Device::open("host");
  const LinkMeasurement measurement = measure_link(device, hasty(256 * kKiB));
  const LinkProfile& profile = measurement.profile;
  EXPECT_TRUE(profile.measured);
  EXPECT_EQ(profile.measured_at.size(), std::string("2026-11-21T12:00:00Z").size());
  EXPECT_EQ(profile.device_name, device.info().name);
  EXPECT_EQ(LinkProfile::parse(profile.to_json()).to_json(), profile.to_json());
  EXPECT_GT(profile.copy_interval, 0);
  EXPECT_EQ(measurement.host_copy.size(), std::min(16u, host_topology().processors));

  for (const auto* grid : {&profile.packed_h2d, &profile.packed_d2h}) {
    ASSERT_FALSE(grid->empty());
    EXPECT_EQ(grid->front().pieces, 1u);
    EXPECT_EQ(grid->front().bytes, 256u);
    EXPECT_EQ(grid->back().pieces, 256u);
    for (const auto& point : *grid) {
      EXPECT_DOUBLE_EQ(profile.predict(point.bytes, point.pieces,
                                       grid == &profile.packed_h2d
                                           ? TransferKinds{MemoryKind::pageable, MemoryKind::device}
                                           : TransferKinds{MemoryKind::device, MemoryKind::pageable},
                                       TransferPath::packed),
                       point.seconds);
    }
  }
  EXPECT_TRUE(std::any_of(
      measurement.staging_trials.begin(), measurement.staging_trials.end(), [&](const StagingTrial& trial) {
        return trial.threads == profile.staging_threads && trial.chunk_bytes == profile.chunk_bytes &&
               trial.streaming_stores == profile.streaming_stores;
      }));
  EXPECT_TRUE(measurement.notes.empty()) << measurement.notes.front();
  // Each of the 7 series of single copies compares each size once.
  EXPECT_GE(measurement.verified_bytes, 7u * 500 * kKiB);

  const auto value = nlohmann::json::parse(measurement.to_json());
  EXPECT_EQ(value["series"].size(), measurement.series.size());
  EXPECT_EQ(value["series"][0]["points"][0]["bytes"], 4096);
  EXPECT_EQ(LinkProfile::parse(value["profile"].dump()).to_json(), profile.to_json());
}

TEST(LinkMeasurement, TriesTheChunksOfTheDevice) {
  const auto tuned = std::make_shared<FaultyBackend>(Device::open("host").shared_backend());
  DeviceTuning tuning;
  tuning.staged_chunks = {16 * kKiB, 4 * kKiB, 8 * kKiB, 32 * kKiB};
  tuned->tune(tuning);
  std::set<std::size_t> tried;
  for (const StagingTrial& trial : measure_link(Device(tuned), hasty()).staging_trials) {
    tried.insert(trial.chunk_bytes);
  }
  EXPECT_THAT(tried, ::testing::UnorderedElementsAreArray(tuning.staged_chunks));
}

TEST(LinkMeasurement, HoldsItsOrderOnADeviceThatCopiesLate) {
  EXPECT_NO_THROW((void)measure_link(Device::open("host:late=1"), hasty()));
}

TEST(LinkMeasurement, RepeatsAtMostAsOftenAsAsked) {
  LinkMeasurementOptions options = hasty();
  options.repetitions = 3;
  options.seconds = 1000;
  const LinkMeasurement measurement = measure_link(Device::open("host"), options);
  for (const auto& series : measurement.series) {
    for (const auto& point : series.points) EXPECT_EQ(point.seconds.repetitions, 3u) << series.name;
  }
}

TEST(LinkMeasurement, SaysHowFarItIsAndStopsWhenProgressThrows) {
  const auto faulty = std::make_shared<FaultyBackend>(Device::open("host").shared_backend());
  std::vector<double> fractions;
  std::vector<std::string> steps;
  LinkMeasurementOptions options = hasty();
  options.progress = [&](const LinkProgress& now) {
    fractions.push_back(now.fraction);
    if (steps.empty() || steps.back() != now.step) steps.emplace_back(now.step);
  };
  (void)measure_link(Device(faulty), options);
  EXPECT_TRUE(std::is_sorted(fractions.begin(), fractions.end()));
  EXPECT_EQ(fractions.front(), 0);
  EXPECT_EQ(fractions.back(), 1);
  EXPECT_GT(steps.size(), 11u);
  EXPECT_EQ(faulty->live(), LiveHandles{});

  struct Stop {};
  for (const double at : {0.0, 0.3, 0.6, 0.9}) {
    options.progress = [at](const LinkProgress& now) {
      if (now.fraction >= at) throw Stop{};
    };
    EXPECT_THROW((void)measure_link(Device(faulty), options), Stop);
    EXPECT_EQ(faulty->live(), LiveHandles{}) << "stopped at " << at;
  }
}

TEST(LinkMeasurement, StopsWhileItTakesAndFillsItsMemory) {
  struct Stop {};
  const auto faulty = std::make_shared<FaultyBackend>(Device::open("host").shared_backend());
  for (const int at : {2, 5, 7, 10}) {
    LinkMeasurementOptions options = hasty(64 * kMiB);
    int calls = 0;
    options.progress = [&](const LinkProgress& now) {
      EXPECT_EQ(now.step, "taking memory");
      if (++calls == at) throw Stop{};
    };
    EXPECT_THROW((void)measure_link(Device(faulty), options), Stop);
    EXPECT_EQ(calls, at);
    EXPECT_EQ(faulty->live(), LiveHandles{}) << "stopped at " << at;
  }
}

TEST(LinkMeasurement, PassesOnADeviceFailureWithoutLeaksOrHangs) {
  const auto counting = std::make_shared<FaultyBackend>(Device::open("host").shared_backend());
  (void)measure_link(Device(counting), hasty());
  for (const Entry entry : {Entry::copy, Entry::event_record, Entry::event_elapsed, Entry::gather,
                            Entry::fill, Entry::device_allocate}) {
    const std::size_t calls = counting->calls(entry);
    ASSERT_GT(calls, 0u);
    for (const std::size_t nth : {std::size_t{1}, calls * 3 / 5 + 1}) {
      const auto faulty = std::make_shared<FaultyBackend>(Device::open("host").shared_backend());
      faulty->fail(entry, nth);
      EXPECT_THROW((void)measure_link(Device(faulty), hasty()), DeviceError)
          << "entry " << static_cast<int>(entry) << ", call " << nth << " of " << calls;
      EXPECT_EQ(faulty->live(), LiveHandles{})
          << "entry " << static_cast<int>(entry) << ", call " << nth << " of " << calls;
    }
  }
}

WrongBytesBackend::Harm nothing(std::size_t /*bytes*/, CopyDirection /*direction*/) {
  return WrongBytesBackend::Harm::none;
}

/// Measures a device that spoils some copies and gathers.
void measure_with(WrongBytesBackend::Choice copies, std::function<bool(const GatherRequest&)> gathers,
                  std::function<void(const LinkProgress&)> progress = {}) {
  const auto backend =
      std::make_shared<WrongBytesBackend>(Device::open("host").shared_backend(), std::move(copies));
  backend->harms_gather = std::move(gathers);
  LinkMeasurementOptions options = hasty();
  options.progress = std::move(progress);
  (void)measure_link(Device(backend), options);
}

std::string error_with(WrongBytesBackend::Choice copies,
                       std::function<bool(const GatherRequest&)> gathers = {},
                       std::function<void(const LinkProgress&)> progress = {}) {
  try {
    measure_with(std::move(copies), std::move(gathers), std::move(progress));
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was noticed";
}

TEST(LinkMeasurement, FailsLoudlyOnWrongBytes) {
  using Harm = WrongBytesBackend::Harm;
  EXPECT_NO_THROW((void)measure_with(nothing, {}));
  for (const CopyDirection wrong : {CopyDirection::h2d, CopyDirection::d2h, CopyDirection::d2d}) {
    for (const Harm harm : {Harm::change, Harm::drop}) {
      const std::string error = error_with([&](std::size_t bytes, CopyDirection direction) {
        return direction == wrong && bytes == 8 * kKiB ? harm : Harm::none;
      });
      EXPECT_THAT(error, HasSubstr("wrong bytes")) << copy_direction_name(wrong);
    }
  }
}

TEST(LinkMeasurement, FailsLoudlyIfAGatherBringsWrongBytes) {
  using Harm = WrongBytesBackend::Harm;
  bool gathers = false;
  const auto progress = [&](const LinkProgress& now) { gathers = now.step == "gathers of samples"; };
  const auto copies_of = [&](std::size_t wanted) {
    return [&gathers, wanted](std::size_t bytes, CopyDirection direction) {
      return gathers && direction == CopyDirection::h2d && bytes == wanted ? Harm::change : Harm::none;
    };
  };
  EXPECT_THAT(error_with(copies_of(16 * kKiB), {}, progress),
              HasSubstr("gather_host of 256 B brought wrong"));
  EXPECT_THAT(error_with(copies_of(64), {}, progress), HasSubstr("gather_copy_engine of 64 B brought wrong"));
  const auto by_kernel = [&](const GatherRequest& /*request*/) { return gathers; };
  EXPECT_THAT(error_with(nothing, by_kernel, progress),
              HasSubstr("gather_zero_copy of 64 B brought wrong bytes"));
}

TEST(LinkMeasurement, GathersOtherSamplesInEachRepetition) {
  std::map<std::pair<const std::uint64_t*, std::size_t>, std::vector<std::uint64_t>> latest;
  std::size_t repeated = 0;
  measure_with(nothing, [&](const GatherRequest& request) {
    if (request.indices == nullptr) return false;
    std::vector<std::uint64_t> drawn(request.indices, request.indices + request.count);
    auto& before = latest[{request.indices, request.row_elements}];
    repeated += drawn.size() == before.size() ? 1 : 0;
    EXPECT_TRUE(drawn != before || drawn.size() < 16) << drawn.size();  // few may be drawn twice
    before = std::move(drawn);
    return false;
  });
  EXPECT_GT(repeated, 50U);
}

TEST(LinkMeasurement, MakesDoWithLessMemoryAndSaysSo) {
  const LinkMeasurement measurement = measure_link(Device::open("host:memory=48MiB"), hasty(64 * kMiB));
  ASSERT_FALSE(measurement.notes.empty());
  EXPECT_THAT(measurement.notes.front(), HasSubstr("instead of 64 MiB"));
  const auto& points = measurement.profile.curves.at(Curve::pinned_h2d);
  EXPECT_LE(points.back().bytes, 24 * kMiB);
  EXPECT_TRUE(std::has_single_bit(points.back().bytes));
}

TEST(LinkMeasurement, HalvesWhatAPoolRefuses) {
  const auto faulty = std::make_shared<FaultyBackend>(Device::open("host").shared_backend());
  faulty->fail(Entry::device_allocate, 1, 2, [] { throw OutOfMemory("a test's device", 1, 0, 0); });
  const LinkMeasurement measurement = measure_link(Device(faulty), hasty(256 * kKiB));
  ASSERT_FALSE(measurement.notes.empty());
  EXPECT_THAT(measurement.notes.front(), HasSubstr("64 KiB instead of 256 KiB: a test's device"));
  EXPECT_EQ(measurement.profile.curves.at(Curve::pinned_h2d).back().bytes, 64 * kKiB);
  EXPECT_EQ(faulty->live(), LiveHandles{});
}

TEST(LinkMeasurement, RefusesCopiesTooSmallToMeasure) {
  EXPECT_THROW((void)measure_link(Device::open("host"), hasty(4 * kKiB)), InvalidArgument);
  EXPECT_THROW((void)measure_link(Device::open("host"), hasty(0)), InvalidArgument);
}

}  // namespace
}  // namespace penstock
