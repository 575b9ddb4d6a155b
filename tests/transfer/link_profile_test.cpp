#include "support/temp_directory.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/transfer/link_profile.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>
#include <sys/stat.h>

#include <array>
#include <atomic>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <sstream>
#include <thread>

namespace penstock {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;
using Curve = LinkProfile::Curve;

constexpr TransferKinds kPinnedIn{MemoryKind::pinned, MemoryKind::device};
constexpr TransferKinds kPinnedOut{MemoryKind::device, MemoryKind::registered};
constexpr TransferKinds kPageableIn{MemoryKind::pageable, MemoryKind::device};
constexpr TransferKinds kPageableOut{MemoryKind::device, MemoryKind::pageable};
constexpr TransferKinds kWithin{MemoryKind::device, MemoryKind::device};

DeviceInfo a_device() {
  DeviceInfo device;
  device.spec = "cuda:0";
  device.backend = "cuda";
  device.name = "NVIDIA Test";
  device.uuid = "GPU-1b2c";
  device.driver = "13.0";
  device.link = {.generation = 1, .width = 16, .max_generation = 5, .max_width = 16};
  return device;
}

/// A link of constant latency and bandwidth, whose times are known.
LinkProfile affine_profile() {
  LinkProfile profile = LinkProfile::defaults(a_device());
  const auto line = [&](Curve curve, double latency, double rate) {
    auto& points = profile.curves[curve];
    points.clear();
    for (std::size_t bytes = 4 * kKiB; bytes <= kGiB; bytes *= 2) {
      points.push_back({bytes, latency + static_cast<double>(bytes) / rate});
    }
  };
  line(Curve::pinned_h2d, 4e-6, 50e9);
  line(Curve::pinned_d2h, 3e-6, 40e9);
  line(Curve::pageable_h2d, 6e-6, 10e9);
  line(Curve::pageable_d2h, 9e-6, 8e9);
  line(Curve::staged_h2d, 30e-6, 49e9);
  line(Curve::staged_d2h, 35e-6, 39e9);
  line(Curve::device_d2d, 5e-6, 1000e9);
  profile.copy_interval = 2.5e-6;
  profile.packed_h2d.clear();
  profile.packed_d2h.clear();
  for (std::size_t pieces = 1; pieces <= 4096; pieces *= 4) {
    for (std::size_t bytes = 256 * pieces; bytes <= 64 * kMiB; bytes *= 2) {
      const double seconds = 8e-6 + 0.05e-6 * static_cast<double>(pieces) + static_cast<double>(bytes) / 45e9;
      profile.packed_h2d.push_back({pieces, bytes, seconds});
      profile.packed_d2h.push_back({pieces, bytes, 2 * seconds});
    }
  }
  return profile;
}

double relative(double predicted, double expected) { return std::abs(predicted / expected - 1); }

class LinkProfileFile : public ::testing::Test {
 protected:
  std::string read() const {
    std::stringstream text;
    text << std::ifstream(file_).rdbuf();
    return text.str();
  }
  void write(const std::string& text) const { std::ofstream(file_) << text; }

  std::string refusal(const DeviceInfo& device) const {
    std::string why;
    EXPECT_FALSE(LinkProfile::load(file_, device, &why).has_value());
    EXPECT_FALSE(LinkProfile::load(file_, device).has_value());
    return why;
  }

  const test::TempDirectory temporary_;
  const fs::path directory_ = temporary_.path();
  const fs::path file_ = directory_ / "deep" / "er" / "profile.json";
};

TEST(LinkProfilePredict, FollowsSingleCopiesBetweenTheMeasuredPoints) {
  const LinkProfile profile = affine_profile();
  for (const double bytes : {4096.0, 5000.0, 100e3, 3e6, 47e6, 900e6, 1073741824.0}) {
    const auto size = static_cast<std::size_t>(bytes);
    EXPECT_LT(relative(profile.predict(size, 1, kPinnedIn), 4e-6 + bytes / 50e9), 0.03) << bytes;
    EXPECT_LT(relative(profile.predict(size, 1, kPinnedOut), 3e-6 + bytes / 40e9), 0.03) << bytes;
    EXPECT_LT(relative(profile.predict(size, 1, kWithin), 5e-6 + bytes / 1000e9), 0.03) << bytes;
    EXPECT_LT(relative(profile.predict(size, 1, kPageableIn, TransferPath::direct), 6e-6 + bytes / 10e9),
              0.03);
    EXPECT_LT(relative(profile.predict(size, 1, kPageableOut, TransferPath::direct), 9e-6 + bytes / 8e9),
              0.03);
    EXPECT_LT(relative(profile.predict(size, 1, kPageableIn, TransferPath::staged), 30e-6 + bytes / 49e9),
              0.03);
    EXPECT_LT(relative(profile.predict(size, 1, kPageableOut, TransferPath::staged), 35e-6 + bytes / 39e9),
              0.03);
  }
}

TEST(LinkProfilePredict, IsExactAtMeasuredPoints) {
  const LinkProfile profile = affine_profile();
  for (const auto& point : profile.curves.at(Curve::staged_d2h)) {
    EXPECT_DOUBLE_EQ(profile.predict(point.bytes, 1, kPageableOut, TransferPath::staged), point.seconds);
  }
  for (const auto& point : profile.packed_h2d) {
    EXPECT_DOUBLE_EQ(profile.predict(point.bytes, point.pieces, kPageableIn, TransferPath::packed),
                     point.seconds);
  }
}

TEST(LinkProfilePredict, IsLatencyBelowTheFirstPointAndBandwidthPastTheLast) {
  const LinkProfile profile = affine_profile();
  const auto& points = profile.curves.at(Curve::pinned_h2d);
  EXPECT_DOUBLE_EQ(profile.predict(1, 1, kPinnedIn), points.front().seconds);
  EXPECT_NEAR(profile.predict(5 * kGiB, 1, kPinnedIn), 5 * points.back().seconds, 1e-9);
  EXPECT_GT(profile.predict(SIZE_MAX, 1, kPinnedIn), 1e7);
  EXPECT_TRUE(std::isfinite(profile.predict(SIZE_MAX, SIZE_MAX, kPageableIn)));
}

TEST(LinkProfilePredict, FollowsPackedTransfersInBothVariables) {
  const LinkProfile profile = affine_profile();
  std::mt19937_64 random(11);
  for (int i = 0; i < 500; ++i) {
    const auto pieces = static_cast<std::size_t>(std::exp2(std::uniform_real_distribution<>(0, 12)(random)));
    const auto each = static_cast<std::size_t>(std::exp2(std::uniform_real_distribution<>(10, 14)(random)));
    const std::size_t bytes = pieces * each;
    const double expected = 8e-6 + 0.05e-6 * static_cast<double>(pieces) + static_cast<double>(bytes) / 45e9;
    EXPECT_LT(relative(profile.predict(bytes, pieces, kPageableIn, TransferPath::packed), expected), 0.12)
        << pieces << " pieces of " << each;
    EXPECT_LT(relative(profile.predict(bytes, pieces, kPageableOut, TransferPath::packed), 2 * expected),
              0.12);
  }
}

TEST(LinkProfilePredict, GoesOnPastThePackedGrid) {
  const LinkProfile profile = affine_profile();
  const auto packed = [&](std::size_t bytes, std::size_t pieces) {
    return profile.predict(bytes, pieces, kPageableIn, TransferPath::packed);
  };
  EXPECT_NEAR(packed(4096 * kKiB * 100, 4096 * 100), 100 * packed(4096 * kKiB, 4096), 1e-9);
  const double staged_ratio = profile.predict(kGiB, 1, kPageableIn, TransferPath::staged) /
                              profile.predict(64 * kMiB, 1, kPageableIn, TransferPath::staged);
  EXPECT_NEAR(packed(kGiB, 16), packed(64 * kMiB, 16) * staged_ratio, 1e-9);
  EXPECT_DOUBLE_EQ(packed(100, 4096), packed(256 * 4096, 4096));
}

TEST(LinkProfilePredict, GrowsWithBytesAndPieces) {
  const LinkProfile profile = affine_profile();
  for (const TransferKinds kinds : {kPinnedIn, kPinnedOut, kPageableIn, kPageableOut, kWithin}) {
    double before = 0;
    for (std::size_t bytes = 1; bytes <= 8 * kGiB; bytes = bytes * 3 / 2 + 1) {
      const double now = profile.predict(bytes, 1, kinds);
      EXPECT_GE(now, before * 0.999);
      before = now;
    }
    before = 0;
    for (std::size_t pieces = 2; pieces <= 100000; pieces *= 2) {
      const double now = profile.predict(16 * kMiB, pieces, kinds);
      EXPECT_GE(now, before * 0.999) << pieces;
      before = now;
    }
  }
}

TEST(LinkProfilePredict, LetsAsynchronousCopiesOverlapAndPageableOnesNot) {
  const LinkProfile profile = affine_profile();
  const std::size_t each = 4 * kKiB;
  const double pinned = profile.predict(1000 * each, 1000, kPinnedIn, TransferPath::direct);
  EXPECT_NEAR(pinned, 1000 * 2.5e-6, 30e-6);
  const double pageable = profile.predict(1000 * each, 1000, kPageableIn, TransferPath::direct);
  EXPECT_NEAR(pageable, 1000 * profile.predict(each, 1, kPageableIn, TransferPath::direct), 1e-9);
}

TEST(LinkProfilePredict, KnowsTheGathersThatWereMeasured) {
  LinkProfile profile = affine_profile();
  EXPECT_EQ(LinkProfile::parse(profile.to_json()).gather_seconds(LinkProfile::Gather::host, 100, 1),
            std::nullopt);
  EXPECT_EQ(profile.gather_seconds(LinkProfile::Gather::copy_engine, 100, 1), std::nullopt);
  profile.gathers[LinkProfile::Gather::copy_engine] = {{100, 1e-6}, {400, 4e-6}};
  profile.gathers[LinkProfile::Gather::zero_copy] = {};
  profile.host_gathers = {{10, 1000, 5e-6}, {10, 4000, 8e-6}, {40, 4000, 16e-6}};
  const LinkProfile read = LinkProfile::parse(profile.to_json());
  EXPECT_EQ(read.gather_seconds(LinkProfile::Gather::zero_copy, 100, 1), std::nullopt);
  for (const auto& [bytes, seconds] : {std::pair{1, 1e-6}, {100, 1e-6}, {200, 2e-6}, {800, 8e-6}}) {
    EXPECT_NEAR(
        read.gather_seconds(LinkProfile::Gather::copy_engine, static_cast<std::size_t>(bytes), 3).value(),
        3 * seconds, 1e-15);
  }
  const auto batch = [&](double samples, std::size_t bytes) {
    return 1e6 * read.gather_seconds(LinkProfile::Gather::host, bytes, samples).value();
  };
  EXPECT_NEAR(batch(10, 50), 5, 1e-9) << "no less than the smallest";
  EXPECT_NEAR(batch(10, 100), 5, 1e-9);
  EXPECT_NEAR(batch(10, 400), 8, 1e-9);
  EXPECT_NEAR(batch(10, 800), 16, 1e-9) << "in proportion";
  EXPECT_NEAR(batch(20, 200), std::sqrt(8.0 * 16), 1e-9) << "between rows";
  EXPECT_NEAR(batch(80, 100), 32, 1e-9) << "as often as needed";
}

TEST(LinkProfilePredict, TakesNoTimeForNothing) {
  EXPECT_EQ(affine_profile().predict(0, 1, kPinnedIn), 0);
  EXPECT_EQ(affine_profile().predict(0, 100, kPageableOut), 0);
}

TEST(LinkProfilePredict, RefusesWhatHasNoPath) {
  const LinkProfile profile = affine_profile();
  EXPECT_THROW((void)profile.predict(1, 1, {MemoryKind::pageable, MemoryKind::pinned}), InvalidArgument);
  EXPECT_THROW((void)profile.choose_path(1, 1, {MemoryKind::pinned, MemoryKind::pinned}), InvalidArgument);
  EXPECT_THROW((void)profile.predict(1, 1, kWithin, TransferPath::staged), InvalidArgument);
  EXPECT_THROW((void)profile.predict(8, 2, kPageableIn, TransferPath::staged), InvalidArgument);
  LinkProfile empty;
  EXPECT_THROW((void)empty.predict(1, 1, kPinnedIn), InvalidArgument);
  EXPECT_THROW((void)empty.predict(1, 2, kPageableIn), InvalidArgument);
  EXPECT_THROW((void)empty.choose_path(1, 1, kPageableIn), InvalidArgument);
}

TEST(LinkProfileChoice, SendsLockedMemoryDirectAndPageableMemoryThroughUs) {
  const LinkProfile profile = affine_profile();
  EXPECT_EQ(profile.choose_path(kGiB, 1, kPinnedIn), TransferPath::direct);
  EXPECT_EQ(profile.choose_path(1, 1, kPinnedOut), TransferPath::direct);
  EXPECT_EQ(profile.choose_path(kGiB, 1, kWithin), TransferPath::direct);
  EXPECT_EQ(profile.choose_path(kGiB, 1000, kWithin), TransferPath::packed);
  EXPECT_EQ(profile.choose_path(kGiB, 1, kPageableIn), TransferPath::staged);
  EXPECT_EQ(profile.choose_path(kGiB, 1, kPageableOut), TransferPath::staged);
  EXPECT_EQ(profile.choose_path(4096, 1, kPageableIn), TransferPath::packed);
  EXPECT_EQ(profile.choose_path(1000 * 4096, 1000, kPageableIn), TransferPath::packed);
}

TEST(LinkProfileChoice, FollowsTheMeasurements) {
  LinkProfile profile = affine_profile();
  EXPECT_EQ(profile.choose_path(1000 * 4096, 1000, kPinnedIn), TransferPath::packed);
  EXPECT_EQ(profile.choose_path(2 * kGiB, 2, kPinnedIn), TransferPath::direct);
  EXPECT_EQ(profile.choose_path(2 * kGiB, 2, kPageableIn), TransferPath::packed);
  for (auto& point : profile.packed_h2d) point.seconds *= 100;
  EXPECT_EQ(profile.choose_path(1000 * 4096, 1000, kPinnedIn), TransferPath::direct);
  EXPECT_EQ(profile.choose_path(256 * kKiB, 1, kPageableIn), TransferPath::staged);
}

TEST(LinkProfileChoice, IsWhatAutomaticPredicts) {
  const LinkProfile profile = affine_profile();
  for (const TransferKinds kinds : {kPinnedIn, kPageableIn, kPageableOut, kWithin}) {
    for (const std::size_t pieces : {1, 7, 1000}) {
      for (const std::size_t bytes : {5000ul, 3000000ul, 500000000ul}) {
        EXPECT_DOUBLE_EQ(profile.predict(bytes, pieces, kinds),
                         profile.predict(bytes, pieces, kinds, profile.choose_path(bytes, pieces, kinds)));
      }
    }
  }
}

TEST(LinkProfileCeiling, IsTheBestPinnedBandwidth) {
  LinkProfile profile = affine_profile();
  profile.curves[Curve::pinned_h2d] = {{1000, 1e-6}, {4000, 1e-6}, {8000, 4e-6}};
  EXPECT_DOUBLE_EQ(profile.ceiling(CopyDirection::h2d), 4e9);
  EXPECT_NEAR(profile.ceiling(CopyDirection::d2h), 40e9, 0.1e9);
  EXPECT_NEAR(profile.ceiling(CopyDirection::d2d), 1000e9, 10e9);
  EXPECT_EQ(LinkProfile().ceiling(CopyDirection::h2d), 0);
}

TEST(LinkProfileDefaults, StayBelowWhatTheLinkStates) {
  DeviceInfo device = a_device();
  const LinkProfile fast = LinkProfile::defaults(device);
  EXPECT_FALSE(fast.measured);
  EXPECT_EQ(fast.device_uuid, device.uuid);
  EXPECT_LT(fast.ceiling(CopyDirection::h2d), device.link.theoretical_bytes_per_second());
  EXPECT_GT(fast.ceiling(CopyDirection::h2d), 0.5 * device.link.theoretical_bytes_per_second());
  device.link = {};
  const LinkProfile unknown = LinkProfile::defaults(device);
  EXPECT_LT(unknown.ceiling(CopyDirection::h2d), 16e9);
  EXPECT_GT(unknown.ceiling(CopyDirection::h2d), 1e9);
  EXPECT_GE(unknown.staging_threads, 1u);
}

TEST(LinkProfileDefaults, AreTheDevicesFigures) {
  DeviceInfo device = a_device();
  device.tuning.usable_link_share = 0.5;
  device.tuning.unstated_link_rate = 3e9;
  device.tuning.device_copy_rate = 70e9;
  device.tuning.copy_latency = 5e-6;
  device.tuning.copy_interval = 2e-6;
  device.tuning.staging_threads = 1;
  device.tuning.staged_chunks.front() = 96 * kKiB;
  const LinkProfile stated = LinkProfile::defaults(device);
  EXPECT_NEAR(stated.ceiling(CopyDirection::h2d) / device.link.theoretical_bytes_per_second(), 0.5, 0.01);
  EXPECT_NEAR(stated.ceiling(CopyDirection::d2d), 70e9, 1e9);
  EXPECT_NEAR(stated.predict(4 * kKiB, 1, kPinnedIn), 5e-6, 1e-6);
  EXPECT_EQ(stated.copy_interval, 2e-6);
  EXPECT_EQ(stated.staging_threads, 1u);
  EXPECT_EQ(stated.chunk_bytes, 96 * kKiB);
  device.link = {};
  EXPECT_NEAR(LinkProfile::defaults(device).ceiling(CopyDirection::h2d), 3e9, 0.1e9);
}

TEST(LinkProfileJson, KeepsEverything) {
  LinkProfile profile = affine_profile();
  profile.measured = true;
  profile.measured_at = "2026-11-21T12:00:00Z";
  profile.device_name = "A \"quoted\" näme";
  profile.staging_threads = 7;
  profile.chunk_bytes = 2 * kMiB;
  profile.streaming_stores = false;
  const std::string text = profile.to_json();
  const LinkProfile again = LinkProfile::parse(text);
  EXPECT_EQ(again.to_json(), text);
  EXPECT_EQ(again.device_name, profile.device_name);
  EXPECT_EQ(again.measured_at, profile.measured_at);
  EXPECT_EQ(again.staging_threads, 7u);
  EXPECT_EQ(again.chunk_bytes, 2 * kMiB);
  EXPECT_FALSE(again.streaming_stores);
  EXPECT_EQ(again.copy_interval, profile.copy_interval);
  EXPECT_EQ(again.predict(123456, 17, kPageableIn), profile.predict(123456, 17, kPageableIn));
}

TEST(LinkProfileJson, SurvivesNamesThatAreNoText) {
  LinkProfile profile = affine_profile();
  profile.device_name = "bad \xff\xfe name";
  EXPECT_NO_THROW((void)LinkProfile::parse(profile.to_json()));
}

TEST(LinkProfileJson, DoesNotMindWhiteSpace) {
  const std::string text = affine_profile().to_json();
  EXPECT_EQ(LinkProfile::parse(json::parse(text).dump()).to_json(), text);
}

/// Restores the checksum of a changed profile, as a program that writes nonsense would.
std::string with_checksum(json document) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : document["profile"].dump()) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "fnv1a:%016llx", static_cast<unsigned long long>(hash));
  document["checksum"] = text.data();
  return document.dump();
}

TEST(LinkProfileJson, RefusesNonsenseWithAGoodChecksum) {
  const json good = json::parse(affine_profile().to_json());
  ASSERT_NO_THROW((void)LinkProfile::parse(with_checksum(good)));
  const auto refused = [&](const char* pointer, json value, const char* reason) {
    json document = good;
    document[json::json_pointer(pointer)] = std::move(value);
    try {
      (void)LinkProfile::parse(with_checksum(document));
      ADD_FAILURE() << pointer << " was taken";
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), HasSubstr(reason)) << pointer;
    }
  };
  refused("/profile/curves/pinned_h2d/3/0", 1, "ascend");
  refused("/profile/curves/pinned_h2d/3/1", -1.0, "positive");
  refused("/profile/curves/pinned_h2d/3/1", 0, "positive");
  refused("/profile/curves/pinned_h2d/3/1", "fast", "number");
  refused("/profile/curves/pinned_h2d/3/0", -4096, "whole number");
  refused("/profile/curves/pinned_h2d/3", json::array({1}), "2 numbers");
  refused("/profile/curves/pinned_h2d", json::array(), "no points");
  refused("/profile/curves", 3, "missing");
  refused("/profile/gathers/zero_copy", json::array(), "no points");
  refused("/profile/host_gathers", json::array({{1, 1.0}}), "3 numbers");
  refused("/profile/host_gathers", json::array({{1, 2, 1.0}, {1, 2, 1.0}}), "do not ascend");
  refused("/profile/gathers", 3, "not an object");
  refused("/profile/packed_h2d/4/0", 0, "within");
  refused("/profile/packed_d2h/4/1", 1, "ascend");
  refused("/profile/packed_d2h", nullptr, "no points");
  refused("/profile/staging_threads", 0, "staging_threads");
  refused("/profile/chunk_bytes", 1, "chunk_bytes");
  refused("/profile/copy_interval", -1e-6, "copy_interval");
  refused("/profile/streaming_stores", 1, "streaming_stores");
  refused("/profile/device_name", 5, "device_name");
  refused("/profile", json::array(), "missing");
  refused("/version", 1, "version 1");
  refused("/version", "1", "version");
  refused("/format", "other", "format");
  for (const char* key : {"curves", "packed_h2d", "driver", "gathers", "host_gathers"}) {
    json document = good;
    document["profile"].erase(key);
    EXPECT_THROW((void)LinkProfile::parse(with_checksum(document)), InvalidArgument) << key;
  }
}

TEST(LinkProfileJson, LeavesOutWhatEarlierVersionsMeasured) {
  json document = json::parse(affine_profile().to_json());
  document["profile"]["curves"]["pinned_both"] = json::array({{1, 1.0}});
  document["profile"]["gathers"]["resident"] = json::array({{1, 1.0}});
  document["profile"]["gather_threads"] = 8;
  document["profile"]["link"] = {{"generation", 5}};
  EXPECT_EQ(LinkProfile::parse(with_checksum(document)).to_json(), affine_profile().to_json());
}

TEST(LinkProfileJson, NoticesEveryDamagedByte) {
  const std::string text = json::parse(affine_profile().to_json()).dump();
  std::mt19937_64 random(3);
  for (int i = 0; i < 400; ++i) {
    std::string damaged = text;
    const std::size_t at = random() % damaged.size();
    const char before = damaged[at];
    damaged[at] = static_cast<char>(before ^ static_cast<char>(1u << (random() % 7)));
    try {
      const LinkProfile taken = LinkProfile::parse(damaged);
      EXPECT_EQ(json::parse(taken.to_json()).dump(), text) << "byte " << at;
    } catch (const InvalidArgument&) {
    }
  }
  for (std::size_t length = 0; length < text.size(); length += 1 + text.size() / 200) {
    EXPECT_THROW((void)LinkProfile::parse(text.substr(0, length)), InvalidArgument) << length;
  }
}

TEST(LinkProfileJson, RefusesOtherTexts) {
  const std::string deep = std::string(200000, '[');
  for (const std::string& text : {std::string(), std::string("null"), std::string("[]"), std::string("{}"),
                                  std::string("{\"format\": 3}"), std::string("\xff\x00\x01", 3), deep,
                                  std::string("{\"format\": 1e999}")}) {
    EXPECT_THROW((void)LinkProfile::parse(text), InvalidArgument) << text.substr(0, 40);
  }
}

TEST_F(LinkProfileFile, ComesBackFromTheDirectoriesItMade) {
  const LinkProfile profile = LinkProfile::defaults(a_device());
  profile.save(file_);
  const auto loaded = LinkProfile::load(file_, a_device());
  ASSERT_TRUE(loaded.has_value());
  EXPECT_EQ(loaded->to_json(), profile.to_json());
}

TEST_F(LinkProfileFile, IsRefusedForAnotherDeviceDriverOrHost) {
  LinkProfile profile = LinkProfile::defaults(a_device());
  profile.save(file_);
  DeviceInfo other = a_device();
  other.uuid = "GPU-ffff";
  EXPECT_THAT(refusal(other), HasSubstr("GPU-ffff"));
  other = a_device();
  other.name = "NVIDIA Other";
  EXPECT_THAT(refusal(other), HasSubstr("NVIDIA Other"));
  other = a_device();
  other.driver = "14.0";
  EXPECT_THAT(refusal(other), HasSubstr("driver"));
  profile.processor += " II";
  profile.save(file_);
  EXPECT_THAT(refusal(a_device()), HasSubstr("processor"));
}

TEST_F(LinkProfileFile, SaysWhyItIsNotUsed) {
  EXPECT_THAT(refusal(a_device()), HasSubstr("There is no link profile at " + file_.string()));
  LinkProfile::defaults(a_device()).save(file_);
  const std::string text = read();
  write(text.substr(0, text.size() / 2));
  EXPECT_THAT(refusal(a_device()), HasSubstr("not JSON"));
  std::string damaged = text;
  damaged.replace(damaged.find("\"measured\": false"), 17, "\"measured\": true");
  write(damaged);
  EXPECT_THAT(refusal(a_device()), HasSubstr("checksum"));
  write("");
  EXPECT_THAT(refusal(a_device()), HasSubstr("not JSON"));
  fs::remove(file_);
  fs::create_directory(file_);
  EXPECT_THAT(refusal(a_device()), HasSubstr("not a file"));
  fs::remove(file_);
  ASSERT_EQ(::mkfifo(file_.c_str(), 0600), 0);
  EXPECT_THAT(refusal(a_device()), HasSubstr("not a file"));
}

TEST_F(LinkProfileFile, IsNotReadWithoutEnd) {
  fs::create_directories(file_.parent_path());
  write("");
  fs::resize_file(file_, std::uintmax_t{3} << 30);
  EXPECT_THAT(refusal(a_device()), HasSubstr("larger"));
}

TEST_F(LinkProfileFile, IsWholeForReadersWhileItIsRewritten) {
  LinkProfile profile = LinkProfile::defaults(a_device());
  profile.save(file_);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (unsigned i = 1; !stop; ++i) {
      profile.staging_threads = 1 + i % 8;
      profile.save(file_);
    }
  });
  for (int i = 0; i < 50; ++i) {
    std::string why;
    EXPECT_TRUE(LinkProfile::load(file_, a_device(), &why).has_value()) << why;
  }
  stop = true;
  writer.join();
  EXPECT_EQ(std::distance(fs::directory_iterator(file_.parent_path()), fs::directory_iterator()), 1)
      << "temporary files stay behind";
}

TEST_F(LinkProfileFile, LeavesTheOldOneWhenItCannotBeReplaced) {
  fs::create_directories(file_);
  const LinkProfile profile = LinkProfile::defaults(a_device());
  try {
    profile.save(file_);
    ADD_FAILURE() << "a directory was replaced";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr(file_.string()));
  }
  EXPECT_TRUE(fs::is_directory(file_));
  EXPECT_EQ(std::distance(fs::directory_iterator(file_.parent_path()), fs::directory_iterator()), 1);
  const fs::path pipe = directory_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THROW(profile.save(pipe), Error);
  EXPECT_TRUE(fs::is_fifo(pipe));
  std::ofstream(directory_ / "flat") << "x";
  try {
    profile.save(directory_ / "flat" / "profile.json");
    ADD_FAILURE() << "a file was taken for a directory";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("its directory cannot be made"));
  }
}

TEST_F(LinkProfileFile, LeavesNothingWhereItCannotBeWritten) {
  fs::create_directories(file_.parent_path());
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit little{.rlim_cur = 100, .rlim_max = before.rlim_max};
  auto* const handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &little), 0);
  EXPECT_THROW(LinkProfile::defaults(a_device()).save(file_), Error);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_TRUE(fs::is_empty(file_.parent_path()));
}

TEST(LinkProfilePlace, TellsDevicesApartAndStaysInTheCache) {
  DeviceInfo device = a_device();
  EXPECT_EQ(LinkProfile::file_for("/cache", device), "/cache/penstock/link-GPU-1b2c.json");
  std::set<fs::path> places;
  for (const char* spec :
       {"host", "host:link=1", "host:link=2", "host:link_1", "../../etc/x", "host/link=1"}) {
    device.uuid.clear();
    device.spec = spec;
    const fs::path place = LinkProfile::file_for("/cache", device);
    EXPECT_EQ(place.parent_path(), "/cache/penstock");
    EXPECT_TRUE(places.insert(place).second) << spec;
  }
  device.spec = std::string(1000, 'x');
  EXPECT_LT(LinkProfile::file_for("/cache", device).filename().string().size(), 200u);
}

TEST(LinkProfileGather, HasANameEach) {
  std::set<std::string_view> names;
  for (int i = 0; i <= static_cast<int>(LinkProfile::Gather::copy_engine); ++i) {
    names.insert(gather_name(static_cast<LinkProfile::Gather>(i)));
  }
  EXPECT_EQ(names.size(), 3u);
  EXPECT_EQ(names.count("unknown"), 0u);
}

TEST(LinkProfileCurve, HasANameEach) {
  std::set<std::string_view> names;
  for (int i = 0; i <= static_cast<int>(Curve::device_d2d); ++i) {
    names.insert(curve_name(static_cast<Curve>(i)));
  }
  EXPECT_EQ(names.size(), 7u);
  EXPECT_EQ(names.count("unknown"), 0u);
}

}  // namespace
}  // namespace penstock
