#include "loader/plan_feed.hpp"
#include "loader/plan_rows.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

// Facts in, plan out: no device, no memory, no thread.
namespace penstock {
namespace {

using ::testing::HasSubstr;
using Kind = Residency::Kind;
using PageLock = FieldFacts::PageLock;
using Source = FieldPlan::Source;
using Upload = FieldPlan::Upload;

/// A field in memory of its own that nobody has locked.
FieldFacts in_memory(std::string name, std::size_t sample_bytes, std::uint64_t samples = 100'000) {
  FieldFacts facts;
  facts.stored = {.name = std::move(name), .dtype = DType::uint8, .shape = {sample_bytes}};
  facts.samples = samples;
  facts.sample_bytes = sample_bytes;
  facts.in_memory = facts.aligned = true;
  facts.allocation_bytes = facts.allocation_used_bytes = facts.bytes();
  return facts;
}

/// A field that a function delivers.
FieldFacts computed(std::string name, std::size_t sample_bytes, std::uint64_t samples = 100'000) {
  FieldFacts facts = in_memory(std::move(name), sample_bytes, samples);
  facts.in_memory = facts.aligned = false;
  facts.allocation_bytes = facts.allocation_used_bytes = 0;
  return facts;
}

FieldFacts with(FieldFacts facts, const std::function<void(FieldFacts&)>& change) {
  change(facts);
  return facts;
}

FeedFacts facts_of(std::vector<FieldFacts> fields, std::size_t batch = 256) {
  FeedFacts facts{.fields = std::move(fields),
                  .device = {.batched_copies = true, .free_bytes = std::size_t{80} << 30},
                  .batch = batch};
  return facts;
}

LoaderOptions shuffled() {
  LoaderOptions options;
  options.batch_size = 256;
  options.shuffle = true;
  return options;
}

LoaderOptions with(LoaderOptions options, const std::function<void(LoaderOptions&)>& change) {
  change(options);
  return options;
}

LinkProfile measured(double zero_copy_gbps, double pinned_gbps) {
  LinkProfile profile;
  const std::size_t bytes = 64 * kMiB;
  const auto points = [&](double gbps) {
    return std::vector<LinkProfile::Point>{{1, 1 / (gbps * kGB)},
                                           {bytes, static_cast<double>(bytes) / (gbps * kGB)}};
  };
  if (zero_copy_gbps > 0) profile.gathers[LinkProfile::Gather::zero_copy] = points(zero_copy_gbps);
  profile.curves[LinkProfile::Curve::pinned_h2d] = points(pinned_gbps);
  return profile;
}

FeedPlan plan(const FeedFacts& facts, const LoaderOptions& options = shuffled()) {
  return plan_feed(facts, options, {});
}

std::string message_of(const FeedFacts& facts, const LoaderOptions& options) {
  try {
    static_cast<void>(plan(facts, options));
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// How one field streams, by its facts and the options.

struct PathRow {
  const char* name;
  FieldFacts field;
  LoaderOptions options;
  GatherPath path;
  Source source;
  const char* reason = "";
  LinkProfile profile{};
  bool batched_copies = true;
};

void PrintTo(const PathRow& row, std::ostream* out) { *out << row.name; }

class PathTest : public ::testing::TestWithParam<PathRow> {};

std::vector<PathRow> path_rows() {
  const FieldFacts wide = in_memory("x", 150'528);
  const FieldFacts narrow = in_memory("x", 784);
  const FieldFacts small = in_memory("x", 784, 1'000);
  const FieldFacts mapped = with(wide, [](auto& f) { f.file_mapping = true; });
  const FieldFacts registered = with(narrow, [](auto& f) { f.page_lock = PageLock::registered; });
  const FieldFacts foreign = with(narrow, [](auto& f) { f.page_lock = PageLock::foreign; });
  const FieldFacts refused = with(narrow, [](auto& f) { f.lock_refused = "the limit is 8 MiB"; });
  const FieldFacts odd = with(narrow, [](auto& f) {
    f.stored.dtype = DType::int16;
    f.stored.shape = {392};
    f.aligned = false;
  });
  const auto slice = [](FieldFacts f, std::size_t times, std::size_t used_times) {
    f.allocation_bytes = times * f.bytes();
    f.allocation_used_bytes = used_times * f.bytes();
    return f;
  };
  const LoaderOptions any = shuffled();
  const auto asking = [](GatherPath path) { return with(shuffled(), [&](auto& o) { o.gather = path; }); };
  const LoaderOptions in_sequence = with(any, [](auto& o) { o.shuffle = false; });
  const LoaderOptions sharded = with(in_sequence, [](auto& o) { o.shard = {.rank = 0, .world_size = 2}; });
  const LoaderOptions blocks = with(any, [](auto& o) { o.gather_blocks = 8; });
  const LoaderOptions no_copies = with(any, [](auto& o) { o.copy_limit_bytes = 0; });
  const LoaderOptions may_change = with(any, [](auto& o) { o.data_may_change = true; });
  const LoaderOptions as_float = with(any, [](auto& o) { o.fields = {{.name = "x", .to = DType::float32}}; });
  const auto float_by = [&](GatherPath path) { return with(as_float, [&](auto& o) { o.gather = path; }); };
  constexpr GatherPath host = GatherPath::host;
  constexpr GatherPath zero = GatherPath::zero_copy;
  constexpr GatherPath engine = GatherPath::copy_engine;

  return {
      {"AWideSampleIsOneCopyEach", wide, any, engine, Source::locked},
      {"ANarrowSampleIsReadByAKernel", narrow, any, zero, Source::locked},
      {"CopyEnginesFrom64KiB", in_memory("x", 64 * kKiB), any, engine, Source::locked},
      {"KernelsBelow64KiB", in_memory("x", 64 * kKiB - 1), any, zero, Source::locked},
      {"SamplesInSequenceAreOneCopy", narrow, in_sequence, engine, Source::locked},
      {"ARanksSamplesDoNotFollowEachOther", narrow, sharded, zero, Source::locked},
      {"BlocksThatAreGivenMeanAKernel", wide, blocks, zero, Source::locked},
      {"WithoutBatchedCopiesAKernel", wide, any, zero, Source::locked, "", {}, false},
      {"WithoutBatchedCopiesAKernelInSequence", narrow, in_sequence, zero, Source::locked, "", {}, false},

      {"UpToTheLimitItIsCopied", in_memory("x", kMiB, 32), any, engine, Source::copied},
      {"PastTheLimitItIsLocked", in_memory("x", kMiB, 33), any, engine, Source::locked},
      {"ASmallFieldIsCopied", small, any, zero, Source::copied},
      {"WithoutALimitNothingIsCopied", small, no_copies, zero, Source::locked},
      {"ACopyThatWasRefusedIsLocked", with(small, [](auto& f) { f.copy_refused = true; }), any, zero,
       Source::locked},
      {"ASmallFieldThatMayChangeIsGathered", small, may_change, host, Source::none, "samples may change"},
      {"ALargeFieldThatMayChangeIsLocked", narrow, may_change, zero, Source::locked},
      {"ASmallFieldThatMayChangeIsLockedIfAskedFor", small,
       with(may_change, [](auto& o) { o.gather = GatherPath::zero_copy; }), zero, Source::locked},
      {"ARegisteredFieldSharesTheLock", registered, any, zero, Source::locked},
      {"ASmallRegisteredFieldIsNotCopied", with(small, [](auto& f) { f.page_lock = PageLock::registered; }),
       any, zero, Source::locked},
      {"WhatOthersLockedIsReadThere", foreign, any, zero, Source::pinned},
      {"ASmallFieldThatOthersLockedIsReadThere",
       with(small, [](auto& f) { f.page_lock = PageLock::foreign; }), any, zero, Source::pinned},

      {"AskedForHost", wide, asking(host), host, Source::none, "asked for"},
      {"AskedForZeroCopy", wide, asking(zero), zero, Source::locked},
      {"AskedForCopyEngine", narrow, asking(engine), engine, Source::locked},
      {"AskedForCopyEngineWithoutBatchedCopies",
       narrow,
       asking(engine),
       engine,
       Source::locked,
       "",
       {},
       false},
      {"AskedForZeroCopyOfASmallField", small, asking(zero), zero, Source::copied},

      {"AFunctionsSamplesAreGathered", computed("x", 784), any, host, Source::none, "side by side in memory"},
      {"AMappedFileIsGathered", mapped, any, host, Source::none, "a mapped file"},
      {"AMapOnADiskIsGathered", with(wide, [](auto& f) { f.on_disk = true; }), any, host, Source::none,
       "a disk"},
      {"AMappedFileIsReadIfAskedFor", mapped, asking(zero), zero, Source::locked},
      {"ASmallMappedFileIsNeverCopied", with(small, [](auto& f) { f.file_mapping = true; }), asking(zero),
       zero, Source::locked},

      {"ALockThatWasRefusedIsGathered", refused, any, host, Source::none,
       "cannot be locked: the limit is 8 MiB"},
      {"ALockThatWasRefusedMattersNotToACopy", with(small, [](auto& f) { f.lock_refused = "no"; }), any, zero,
       Source::copied},
      {"ARefusedLockOfAWideSample", with(wide, [](auto& f) { f.lock_refused = "no"; }), any, host,
       Source::none, "cannot be locked: no"},

      {"ASmallPartOfAnArrayIsGathered", slice(narrow, 3, 1), any, host, Source::none,
       "a small part of an array"},
      {"HalfAnArrayIsLocked", slice(narrow, 2, 1), any, zero, Source::locked},
      {"SlicesTogetherAreMostOfAnArray", slice(narrow, 3, 2), any, zero, Source::locked},
      {"ASmallPartIsLockedIfAskedFor", slice(narrow, 3, 1), asking(zero), zero, Source::locked},
      {"ASmallPartThatIsCopied", slice(small, 9, 1), any, zero, Source::copied},
      {"ASmallPartThatIsLocked", slice(registered, 9, 1), any, zero, Source::locked},
      {"ASmallPartThatOthersLocked", slice(foreign, 9, 1), any, zero, Source::pinned},

      {"UnalignedValuesCross", odd, any, zero, Source::locked},
      {"UnalignedValuesAreNotConvertedOverTheLink", odd, as_float, host, Source::none, "not aligned"},
      {"UnalignedValuesAreConvertedFromTheStaging", odd, float_by(engine), engine, Source::locked},

      {"ASlowKernelIsNoMatch", narrow, any, host, Source::none, "at 10.0 GB/s, copies at 50.0",
       measured(10, 50)},
      {"TwiceAsQuickIsNotEnough", narrow, any, zero, Source::locked, "", measured(25, 50)},
      {"MoreThanTwiceIs", narrow, any, host, Source::none, "link profile", measured(24, 50)},
      {"TheCopyEngineDoesNotMindASlowKernel", wide, any, engine, Source::locked, "", measured(10, 50)},
      {"ASlowKernelIfAskedFor", narrow, asking(zero), zero, Source::locked, "", measured(10, 50)},
      {"AProfileWithoutFigures", narrow, any, zero, Source::locked, "", measured(0, 0)},
  };
}

INSTANTIATE_TEST_SUITE_P(Rows, PathTest, ::testing::ValuesIn(path_rows()),
                         [](const auto& row) { return std::string(row.param.name); });

TEST_P(PathTest, IsChosen) {
  const PathRow& row = GetParam();
  FeedFacts facts = facts_of({row.field});
  facts.device.batched_copies = row.batched_copies;
  const FeedPlan made = plan_feed(facts, row.options, row.profile);
  const FieldPlan& field = made.fields[0];
  EXPECT_EQ(field.path, row.path);
  EXPECT_EQ(field.source, row.source);
  if (row.reason[0] == '\0') {
    EXPECT_EQ(field.reason, "");
  } else {
    EXPECT_THAT(field.reason, HasSubstr(row.reason));
  }
  EXPECT_EQ(made.gathers_on_host(), row.path == GatherPath::host);
}

TEST(PlanTest, TheDeviceSaysWhichSamplesAreWorthACopyEach) {
  FeedFacts facts = facts_of({in_memory("x", 1000, 1000)});
  facts.device.tuning.enqueue_copy_seconds = 1e-9;
  facts.device.tuning.copied_sample_bytes = 1001;
  EXPECT_EQ(plan(facts).fields[0].path, GatherPath::zero_copy);
  facts.device.tuning.copied_sample_bytes = 1000;
  EXPECT_EQ(plan(facts).fields[0].path, GatherPath::copy_engine);
  facts.device.tuning.enqueue_copy_seconds = 1e-6;
  EXPECT_EQ(plan(facts).fields[0].path, GatherPath::zero_copy) << "the host enqueues 1 GB/s";
}

// Errors.

struct ErrorRow {
  const char* name;
  FieldFacts field;
  std::function<void(LoaderOptions&)> change;
  const char* message;
};

void PrintTo(const ErrorRow& row, std::ostream* out) { *out << row.name; }

class PlanErrorTest : public ::testing::TestWithParam<ErrorRow> {};

INSTANTIATE_TEST_SUITE_P(
    Rows, PlanErrorTest,
    ::testing::ValuesIn(std::vector<ErrorRow>{
        {"ZeroCopyOfAFunction", computed("x", 784), [](auto& o) { o.gather = GatherPath::zero_copy; },
         "Field 'x' cannot be gathered by zero-copy: its samples"},
        {"CopyEngineOfAFunction", computed("x", 784), [](auto& o) { o.gather = GatherPath::copy_engine; },
         "Field 'x' cannot be gathered by copy-engine: its samples"},
        {"ZeroCopyWithoutALock", with(in_memory("x", 784), [](auto& f) { f.lock_refused = "no more"; }),
         [](auto& o) { o.gather = GatherPath::zero_copy; }, "its memory cannot be locked: no more"},
        {"AFieldThatIsNotThere", in_memory("x", 784), [](auto& o) { o.fields = {{.name = "y"}}; },
         "The dataset has no field 'y'; it has: x."},
        {"OptionsTwice", in_memory("x", 784), [](auto& o) { o.fields = {{.name = "x"}, {.name = "x"}}; },
         "options twice"},
        {"ATypeThatIsNoWider", with(in_memory("x", 784), [](auto& f) { f.stored.dtype = DType::float64; }),
         [](auto& o) { o.fields = {{.name = "x", .to = DType::float32}}; }, "cannot be delivered as float32"},
        {"AScaleOfIntegers", in_memory("x", 784), [](auto& o) { o.fields = {{.name = "x", .scale = {2}}}; },
         "scale and shift need float16"},
        {"ChannelsThatAreNotThere", in_memory("x", 784),
         [](auto& o) { o.fields = {{.name = "x", .to = DType::float32, .scale = {1, 2, 3}}}; },
         "does not have 3 channels in axis 0"},
        {"AFractionPastOne", in_memory("x", 784),
         [](auto& o) { o.residency = {.kind = Kind::fraction, .fraction = 1.5}; },
         "fractions go from 0 to 1"},
        {"ResidentSamplesThatVary", with(computed("x", 784), [](auto& f) { f.varies = true; }),
         [](auto& o) { o.residency = {.kind = Kind::automatic}; }, "field 'x' differ from epoch to epoch"},
        {"ABudgetBelowABatch", in_memory("x", 784), [](auto& o) { o.device_budget_bytes = 100'000; },
         "one batch does not fit"},
        {"AResidencyThatDoesNotFit", in_memory("x", 784),
         [](auto& o) {
           o.residency = {.kind = Kind::all};
           o.device_budget_bytes = 70 * kMiB;
         },
         "make less of the dataset resident"},
        {"AFractionThatDoesNotFit", in_memory("x", 784),
         [](auto& o) {
           o.residency = {.kind = Kind::fraction, .fraction = 0.9};
           o.device_budget_bytes = 60 * kMiB;
         },
         "make less of the dataset resident"},
        {"ACopyEngineWithoutRoomToStage", in_memory("x", 150'528),
         [](auto& o) {
           o.gather = GatherPath::copy_engine;
           o.fields = {{.name = "x", .to = DType::float32}};
           o.device_budget_bytes = 3 * (4 * 256 * 150'528 + 2048);
         },
         "copy-engine gather of samples that are converted"},
    }),
    [](const auto& row) { return std::string(row.param.name); });

TEST_P(PlanErrorTest, SaysWhatToDo) {
  const LoaderOptions options = with(shuffled(), GetParam().change);
  EXPECT_THAT(message_of(facts_of({GetParam().field}), options), HasSubstr(GetParam().message));
}

TEST(PlanTest, ABatchPastAnyMemoryIsRefused) {
  FeedFacts facts = facts_of({in_memory("x", std::size_t{1} << 40, 1)}, std::size_t{1} << 30);
  EXPECT_THAT(message_of(facts, shuffled()), HasSubstr("exceeds any memory"));
}

// Shares of device memory.

constexpr std::size_t kBatch = 256;

std::size_t aligned(std::size_t bytes) { return align_up(bytes, 256); }
const std::size_t kOrders = kCopyStreams * aligned(kBatch * 8);  ///< what the device needs to order a batch
/// A slot of one field, with the batch's indices.
std::size_t slot(std::size_t delivered_bytes) { return aligned(kBatch * delivered_bytes); }

struct ShareRow {
  const char* name;
  Residency residency;
  std::size_t beside_ring;              ///< bytes
  std::vector<std::uint64_t> resident;  ///< samples of fields of 1,000, 100 and 10 bytes, of 1,000 samples
};

void PrintTo(const ShareRow& row, std::ostream* out) { *out << row.name; }

class ShareTest : public ::testing::TestWithParam<ShareRow> {};

INSTANTIATE_TEST_SUITE_P(
    Rows, ShareTest,
    ::testing::ValuesIn(std::vector<ShareRow>{
        {"None", {}, 10 * kMiB, {0, 0, 0}},
        {"All", {.kind = Kind::all}, 2 * kMiB, {1000, 1000, 1000}},
        {"AllButJust", {.kind = Kind::all}, 1'000'192 + 100'096 + 10'240, {1000, 1000, 1000}},
        {"AFraction", {.kind = Kind::fraction, .fraction = 0.25}, kMiB, {250, 250, 250}},
        {"AFractionIsRoundedDown", {.kind = Kind::fraction, .fraction = 0.0019}, kMiB, {1, 1, 1}},
        {"AFractionOfNothing", {.kind = Kind::fraction, .fraction = 0}, kMiB, {0, 0, 0}},
        {"AFractionOfAll", {.kind = Kind::fraction, .fraction = 1}, 2 * kMiB, {1000, 1000, 1000}},
        {"TheSmallestFirst", {.kind = Kind::automatic}, 10'240 + 512, {0, 2, 1000}},
        {"TheNextThen", {.kind = Kind::automatic}, 10'240 + 100'096 + 512 + 5'000 + kOrders, {5, 1000, 1000}},
        {"WhatFitsOfTheSmallest", {.kind = Kind::automatic}, 5'256, {0, 0, 500}},
        {"WhatFitsIsAll", {.kind = Kind::automatic}, 2 * kMiB, {1000, 1000, 1000}},
        {"NothingFits", {.kind = Kind::automatic}, 200, {0, 0, 0}},
    }),
    [](const auto& row) { return std::string(row.param.name); });

TEST_P(ShareTest, OfTheResidents) {
  const ShareRow& row = GetParam();
  const FeedFacts facts =
      facts_of({in_memory("a", 1000, 1000), in_memory("b", 100, 1000), in_memory("c", 10, 1000)});
  const std::size_t one_slot = aligned(kBatch * 1000) + aligned(kBatch * 100) + aligned(kBatch * 10);
  const LoaderOptions options = with(shuffled(), [&](auto& o) {
    o.residency = row.residency;
    o.device_budget_bytes = 3 * one_slot + row.beside_ring;
  });
  const FeedPlan made = plan(facts, options);
  std::size_t bytes = 0;
  for (std::size_t f = 0; f < 3; ++f) {
    EXPECT_EQ(made.fields[f].resident_samples, row.resident[f]) << f;
    bytes += made.fields[f].resident_bytes();
  }
  EXPECT_EQ(made.resident_bytes, bytes);
  EXPECT_EQ(made.slot_bytes, one_slot);
  EXPECT_EQ(made.budget_bytes, options.device_budget_bytes);
  EXPECT_LE(made.reserved_bytes, made.budget_bytes);
  EXPECT_GE(made.reserved_bytes, std::min(3 * one_slot + bytes, made.budget_bytes - 255));
}

TEST(PlanTest, TheBudgetIsHalfOfTheFreeMemory) {
  const FeedPlan made = plan(facts_of({in_memory("x", 784)}));
  EXPECT_EQ(made.budget_bytes, std::size_t{40} << 30);
  EXPECT_EQ(made.reserved_bytes, 3 * slot(784) + kOrders);
  const FeedPlan deep =
      plan(facts_of({in_memory("x", 784)}), with(shuffled(), [](auto& o) { o.prefetch_depth = 9; }));
  EXPECT_EQ(deep.reserved_bytes, 10 * slot(784) + kOrders);
}

// Staging on the device: what passes through it, and what happens without room for it.

struct StagingRow {
  const char* name;
  FieldFacts field;
  std::function<void(LoaderOptions&)> change;
  std::size_t beside_ring;  ///< bytes beside the ring and the factors
  bool staged;
  GatherPath path;
  const char* reason = "";
  bool memory_refused = false;
};

void PrintTo(const StagingRow& row, std::ostream* out) { *out << row.name; }

class StagingTest : public ::testing::TestWithParam<StagingRow> {};

const auto kAsFloat = [](LoaderOptions& o) { o.fields = {{.name = "x", .to = DType::float32}}; };
const auto kAsStored = [](LoaderOptions&) {};
const auto kHalf = [](LoaderOptions& o) { o.residency = {.kind = Kind::fraction, .fraction = 0.5}; };
const auto kHostAsFloat = [](LoaderOptions& o) {
  kAsFloat(o);
  o.gather = GatherPath::host;
};
const auto kEngineAsFloat = [](LoaderOptions& o) {
  kAsFloat(o);
  o.gather = GatherPath::copy_engine;
};
constexpr std::size_t kWide = 81'920;  // bytes of a sample
constexpr std::size_t kRoom = 2 * kBatch * kWide;
const std::size_t kLists = 2 * aligned(kBatch * 8);  ///< indices and positions, on one copy stream

INSTANTIATE_TEST_SUITE_P(
    Rows, StagingTest,
    ::testing::ValuesIn(std::vector<StagingRow>{
        {"CopiesThatArriveAsTheyAre", in_memory("x", kWide), kAsStored, 10 * kRoom, false,
         GatherPath::copy_engine},
        {"CopiesThatAreConverted", in_memory("x", kWide), kAsFloat, kRoom, true, GatherPath::copy_engine},
        {"CopiesOfOnePart", in_memory("x", kWide, 100), kHalf, 50 * kWide + kRoom, true,
         GatherPath::copy_engine},
        {"CopiesWithoutRoom", in_memory("x", kWide), kAsFloat, kRoom - 1, false, GatherPath::zero_copy,
         "no room on the device"},
        {"UnalignedCopiesAreConverted", with(in_memory("x", kWide), [](auto& f) { f.aligned = false; }),
         kEngineAsFloat, kRoom, true, GatherPath::copy_engine},
        {"CopiesWhoseMemoryWasRefused", in_memory("x", kWide), kAsFloat, kRoom, false, GatherPath::zero_copy,
         "no room on the device", true},
        {"CopiesThatWereAskedForKeepTheirStaging", in_memory("x", kWide), kEngineAsFloat, kRoom, true,
         GatherPath::copy_engine, "", true},
        {"GatheredSamplesThatAreConverted", in_memory("x", 784), kHostAsFloat, 2 * kBatch * 784, true,
         GatherPath::host, "asked for"},
        {"GatheredSamplesWithoutRoom", in_memory("x", 784), kHostAsFloat, 2 * kBatch * 784 - 1, false,
         GatherPath::host, "asked for"},
        {"GatheredSamplesFrom64KiB", in_memory("x", 256), kHostAsFloat, kMiB, true, GatherPath::host,
         "asked for"},
        {"GatheredSamplesBelow64KiB", in_memory("x", 255), kHostAsFloat, kMiB, false, GatherPath::host,
         "asked for"},
        {"GatheredSamplesWhoseMemoryWasRefused", in_memory("x", 784), kHostAsFloat, kMiB, false,
         GatherPath::host, "asked for", true},
        {"KernelsNeedNone", in_memory("x", 784), kAsFloat, kMiB, false, GatherPath::zero_copy},
    }),
    [](const auto& row) { return std::string(row.param.name); });

TEST_P(StagingTest, OnTheDevice) {
  const StagingRow& row = GetParam();
  FeedFacts facts = facts_of({row.field});
  facts.device.memory_refused = row.memory_refused;
  LoaderOptions options = with(shuffled(), row.change);
  const std::size_t delivered = row.field.sample_bytes * (options.fields.empty() ? 1 : 4);
  options.device_budget_bytes = 3 * slot(delivered) + row.beside_ring;
  const FeedPlan made = plan(facts, options);
  const FieldPlan& field = made.fields[0];
  EXPECT_EQ(field.staged_on_device, row.staged);
  EXPECT_EQ(field.path, row.path);
  EXPECT_THAT(field.reason, HasSubstr(row.reason));
  const std::size_t order = made.orders_on_device ? aligned(kBatch * sizeof(std::uint64_t)) : 0;
  EXPECT_EQ(made.device_staging_bytes, order + (row.staged ? aligned(kBatch * row.field.sample_bytes) : 0));
  EXPECT_LE(3 * made.slot_bytes + made.resident_bytes + kCopyStreams * made.device_staging_bytes,
            made.budget_bytes);
}

TEST(PlanTest, WithoutRoomAndWithASlowKernelTheHostGathers) {
  const LoaderOptions options = with(shuffled(), [](auto& o) {
    kAsFloat(o);
    o.device_budget_bytes = 3 * slot(4 * kWide) + kRoom - 1;
  });
  const FeedPlan made = plan_feed(facts_of({in_memory("x", kWide)}), options, measured(10, 50));
  EXPECT_EQ(made.fields[0].path, GatherPath::host);
  EXPECT_THAT(made.fields[0].reason, HasSubstr("link profile"));
  EXPECT_EQ(made.fields[0].source, Source::none);
}

TEST(PlanTest, AutomaticResidencyLeavesRoomForStagingIfThatIsLittle) {
  const auto residents = [](std::size_t beside_ring, GatherPath gather = GatherPath::automatic) {
    const LoaderOptions options = with(shuffled(), [&](auto& o) {
      kAsFloat(o);
      o.gather = gather;
      o.residency = {.kind = Kind::automatic};
      o.device_budget_bytes = 3 * slot(4 * kWide) + beside_ring;
    });
    return plan(facts_of({in_memory("x", kWide)}), options).fields[0];
  };
  const std::size_t kWanted = kRoom + kCopyStreams * kLists;
  const FieldPlan roomy = residents(4 * kWanted);
  EXPECT_TRUE(roomy.staged_on_device);
  EXPECT_EQ(roomy.resident_samples, (3 * kWanted - 256) / kWide);
  const FieldPlan tight = residents(4 * kWanted - 1);
  EXPECT_FALSE(tight.staged_on_device) << "staging would take more than a quarter";
  EXPECT_EQ(tight.resident_samples, (4 * kWanted - 1 - 256) / kWide);
  const FieldPlan asked = residents(kRoom + kRoom / 2, GatherPath::copy_engine);
  EXPECT_TRUE(asked.staged_on_device) << "its staging comes before the residents";
  EXPECT_EQ(asked.resident_samples, (kRoom / 2 - kCopyStreams * kLists - 256) / kWide);
}

// Types and layout.

TEST(PlanTest, NarrowedFieldsArriveAsTheyWere) {
  const FieldFacts narrowed =
      with(in_memory("x", 10), [](auto& f) { f.stored.narrowed_from = DType::int64; });
  const FieldPlan field = plan(facts_of({narrowed})).fields[0];
  EXPECT_EQ(field.to, DType::int64);
  EXPECT_TRUE(field.converts());
  EXPECT_EQ(field.sample_bytes, 10U);
  EXPECT_EQ(field.delivered_bytes, 80U);
  EXPECT_EQ(field.describe(nullptr),
            "x: uint8 10 (narrowed from int64), zero-copy gather, delivered as int64");
}

TEST(PlanTest, PlainCopiesLieSideBySideInBothSlots) {
  const LoaderOptions options = with(shuffled(), [](auto& o) {
    o.gather = GatherPath::host;
    o.fields = {{.name = "b", .to = DType::float32}};
  });
  const FeedPlan made = plan(facts_of({computed("a", 10), computed("b", 20), computed("c", 30)}), options);
  const auto& [a, b, c] = std::tie(made.fields[0], made.fields[1], made.fields[2]);
  EXPECT_TRUE(a.is_plain_copy() && c.is_plain_copy() && !b.is_plain_copy());
  EXPECT_EQ(a.slot_offset, a.staging_offset);
  EXPECT_EQ(c.slot_offset, c.staging_offset);
  EXPECT_EQ(c.slot_offset, a.slot_offset + aligned(kBatch * 10));
  EXPECT_EQ(b.slot_offset, c.slot_offset + aligned(kBatch * 30));
  EXPECT_EQ(b.staging_offset, c.staging_offset + aligned(kBatch * 30));
  EXPECT_EQ(made.staging_indices, b.staging_offset + aligned(kBatch * 20));
  EXPECT_EQ(made.slot_bytes, b.slot_offset + aligned(kBatch * 80));
  EXPECT_EQ(made.staging_bytes, made.staging_indices + aligned(kBatch * 8));
  EXPECT_EQ(made.delivered_sample_bytes(), 10U + 80U + 30U);
}

TEST(PlanTest, SamplesInTwoPartsHaveTheirPositionsInTheStagingSlot) {
  const LoaderOptions options = with(shuffled(), [](auto& o) {
    o.gather = GatherPath::host;
    o.residency = {.kind = Kind::fraction, .fraction = 0.5};
  });
  const FeedPlan made = plan(facts_of({in_memory("a", 10), in_memory("b", 20)}), options);
  EXPECT_TRUE(made.fields[0].in_two_parts());
  EXPECT_EQ(made.fields[0].staging_positions, made.staging_indices + aligned(kBatch * 8));
  EXPECT_EQ(made.fields[1].staging_positions, made.fields[0].staging_positions + aligned(kBatch * 8));
  EXPECT_EQ(made.staging_bytes, made.fields[1].staging_positions + aligned(kBatch * 8));
  EXPECT_EQ(made.list_bytes, made.staging_bytes - made.staging_indices);
}

TEST(PlanTest, FactorsAreSpreadAndCounted) {
  const FieldFacts image = with(in_memory("x", 12), [](auto& f) { f.stored.shape = {3, 2, 2}; });
  const LoaderOptions options = with(shuffled(), [](auto& o) {
    o.fields = {{.name = "x", .to = DType::float16, .scale = {1, 2, 3}, .shift = {4}}};
  });
  const FeedPlan made = plan(facts_of({image}), options);
  EXPECT_EQ(made.fields[0].factors.channels, 3U);
  EXPECT_EQ(made.fields[0].factors.channel_elements, 4U);
  EXPECT_EQ(made.fields[0].factors.shift, std::vector<float>(3, 4.0F));
  EXPECT_EQ(made.table_bytes, 256U);
  EXPECT_THAT(made.describe()[0], HasSubstr("delivered as float16, scaled by channel (3)"));
  EXPECT_EQ(plan(facts_of({image})).table_bytes, 0U);
}

// Rows.

/// Facts of a host that has room for rows.
FeedFacts with_room(std::vector<FieldFacts> fields, std::size_t batch = kBatch) {
  FeedFacts facts = facts_of(std::move(fields), batch);
  facts.host_bytes = std::size_t{64} << 30;
  return facts;
}

FieldFacts number(std::string name, DType dtype = DType::int64, std::uint64_t samples = 100'000) {
  return with(in_memory(std::move(name), dtype_bytes(dtype), samples), [&](auto& f) {
    f.stored.dtype = dtype;
    f.stored.shape = {};
  });
}

std::string columns_of(const FeedPlan& made) {
  std::string names;
  for (const FieldPlan& field : made.fields) names += field.is_column() ? field.stored.name : "";
  return names;
}

struct ColumnsRow {
  const char* name;
  std::vector<FieldFacts> fields;
  std::function<void(LoaderOptions&)> change;
  const char* columns;
};

TEST(PlanTest, SmallSamplesInMemoryLieInRows) {
  const FieldFacts a = number("a");
  const FieldFacts b = number("b");
  const std::vector<ColumnsRow> rows{
      {"two", {a, b}, kAsStored, "ab"},
      {"beside a wide one", {a, in_memory("w", 65), b}, kAsStored, "ab"},
      {"up to a line", {a, in_memory("w", 64)}, kAsStored, "aw"},
      {"one alone", {a, in_memory("w", 784)}, kAsStored, ""},
      {"of a function", {a, b, computed("c", 8)}, kAsStored, "ab"},
      {"of a matrix", {a, b, with(computed("c", 8), [](auto& f) { f.strided = true; })}, kAsStored, "abc"},
      {"of a mapped file",
       {a, b, with(number("m"), [](auto& f) { f.file_mapping = true; })},
       kAsStored,
       "ab"},
      {"locked by others", {a, with(b, [](auto& f) { f.page_lock = PageLock::foreign; })}, kAsStored, "ab"},
      {"past the limit of copies",
       {number("a", DType::int64, 20'000'000), number("b", DType::int64, 20'000'000)},
       kAsStored,
       "ab"},
      {"by kernels", {a, b}, [](auto& o) { o.gather = GatherPath::zero_copy; }, "ab"},
      {"by the host", {a, b}, [](auto& o) { o.gather = GatherPath::host; }, "ab"},
      {"by copy engines", {a, b}, [](auto& o) { o.gather = GatherPath::copy_engine; }, ""},
      {"that may change", {a, b}, [](auto& o) { o.data_may_change = true; }, ""},
      {"without copies", {a, b}, [](auto& o) { o.copy_limit_bytes = 0; }, ""},
      {"in a budget",
       {number("a"), number("b", DType::int16), in_memory("c", 16), number("d", DType::int32)},
       [](auto& o) { o.row_budget_bytes = 31 * 100'000; },
       "abd"},
      {"in no budget", {a, b}, [](auto& o) { o.row_budget_bytes = 16 * 100'000 - 1; }, ""},
  };
  for (const ColumnsRow& row : rows) {
    const FeedPlan made = plan(with_room(row.fields), with(shuffled(), row.change));
    EXPECT_EQ(columns_of(made), row.columns) << row.name;
    EXPECT_EQ(made.rows() != nullptr, *row.columns != 0) << row.name;
    EXPECT_EQ(made.delivered().size(), row.fields.size()) << row.name;
    EXPECT_EQ(made.fields.size(), row.fields.size() + (*row.columns != 0 ? 1 : 0)) << row.name;
  }
  FeedFacts refused = with_room({a, b});
  refused.rows_refused = true;
  EXPECT_EQ(plan(refused).rows(), nullptr);
  FeedFacts small_host = with_room({a, b});
  small_host.host_bytes = 8 * 16 * 100'000 - 1;
  EXPECT_EQ(plan(small_host).rows(), nullptr);
}

TEST(PlanTest, RowsTravelForTheirColumns) {
  const LoaderOptions options =
      with(shuffled(), [](auto& o) { o.fields = {{.name = "c", .to = DType::float32}}; });
  const FeedPlan made = plan(
      with_room({number("a"), in_memory("w", 784), number("b", DType::int16), number("c", DType::uint8)}),
      options);
  const FieldPlan& rows = *made.rows();
  EXPECT_EQ(rows.sample_bytes, 16U);
  EXPECT_EQ(rows.path, GatherPath::zero_copy);
  EXPECT_EQ(rows.source, Source::copied);
  EXPECT_EQ(rows.delivered_bytes, 0U);
  EXPECT_EQ(made.device_staging_bytes, aligned(kBatch * 16) + aligned(kBatch * 8))
      << "where the kernel gathers them, and their order";
  EXPECT_FALSE(rows.staged_on_device);
  for (const std::size_t f : {0, 2, 3}) {
    EXPECT_EQ(made.fields[f].source, Source::none);
    EXPECT_FALSE(made.fields[f].streams() || made.fields[f].by_kernel() || made.fields[f].is_listed());
  }
  EXPECT_EQ(made.delivered_sample_bytes(), 8U + 784 + 2 + 4);
  EXPECT_EQ(made.slot_bytes, slot(784) + aligned(kBatch * 8) + aligned(kBatch * 2) + aligned(kBatch * 4));
  EXPECT_EQ(made.table_bytes, 512U) << "three values, and the first value of each segment";
  EXPECT_EQ(made.reserved_bytes, 3 * made.slot_bytes + 512 + 2 * aligned(kBatch * 16) + kOrders);
  EXPECT_EQ(made.describe()[3],
            "c: uint8 scalar, in rows of 16 bytes, zero-copy gather, delivered as float32");
  EXPECT_EQ(made.describe().size(), 4U);
}

TEST(PlanTest, RowsLandOnTheDevice) {
  const std::vector<FieldFacts> fields{number("a"), number("b")};
  const std::size_t bytes = aligned(kBatch * 16);
  const auto rows_of = [&](GatherPath gather, const char* residency) {
    const FeedPlan made = plan(with_room(fields), with(shuffled(), [&](auto& o) {
                                 o.gather = gather;
                                 o.residency = Residency::parse(residency);
                               }));
    return std::tuple(*made.rows(), made.device_staging_bytes, made.staging_bytes);
  };
  {
    const auto [rows, device, pinned] = rows_of(GatherPath::host, "none");
    EXPECT_TRUE(rows.by_host() && rows.staged_on_device && !rows.is_plain_copy());
    EXPECT_EQ(rows.rows_offset, rows.device_staging_offset) << "one buffer is enough";
    EXPECT_EQ(device, bytes);
    EXPECT_EQ(pinned, bytes + aligned(kBatch * 8));
    EXPECT_EQ(rows.source, Source::copied);
  }
  {
    const auto [rows, device, pinned] = rows_of(GatherPath::host, "0.5");
    EXPECT_NE(rows.rows_offset, rows.device_staging_offset) << "resident rows are joined";
    EXPECT_EQ(device, 2 * bytes + kLists);
    EXPECT_EQ(rows.upload, Upload::direct);
  }
  {
    const auto [rows, device, pinned] = rows_of(GatherPath::automatic, "all");
    EXPECT_EQ(rows.resident_samples, 100'000U);
    EXPECT_EQ(device, bytes + aligned(kBatch * 8));
    EXPECT_EQ(rows.source, Source::none);
    EXPECT_EQ(rows.upload, Upload::gathered) << "there is no copy on the host";
  }
}

TEST(PlanTest, RowsAreLeftOutIfTheDeviceHasNoRoomForThem) {
  const std::vector<FieldFacts> fields{number("a"), number("b")};
  const std::size_t one_slot = slot(8) + aligned(kBatch * 8);
  const auto rows_in = [&](std::size_t budget) {
    return plan(with_room(fields), with(shuffled(), [&](auto& o) { o.device_budget_bytes = budget; }))
               .rows() != nullptr;
  };
  const std::size_t beside = 512 + 2 * aligned(kBatch * 16);
  EXPECT_TRUE(rows_in(3 * one_slot + beside));
  EXPECT_FALSE(rows_in(3 * one_slot + beside - 1));
}

TEST(PlanTest, ColumnsOfOneTypeAreOneArray) {
  std::vector<FieldFacts> fields;
  for (int i = 0; i < 5; ++i) {
    fields.push_back(number("i" + std::to_string(i)));
    fields.push_back(number("f" + std::to_string(i), DType::float32));
  }
  const FeedPlan made = plan(with_room(std::move(fields)));
  for (std::size_t i = 1; i < 5; ++i) {
    EXPECT_EQ(made.fields[2 * i].slot_offset - made.fields[2 * i - 2].slot_offset, aligned(kBatch * 8));
    EXPECT_EQ(made.fields[2 * i + 1].slot_offset - made.fields[2 * i - 1].slot_offset, aligned(kBatch * 4));
  }
}

TEST(PlanTest, ColumnsLieAWholeNumberOfSamplesApart) {
  const auto point = [](const char* name) {
    return with(in_memory(name, 12), [](auto& f) {
      f.stored.dtype = DType::float32;
      f.stored.shape = {3};
    });
  };
  const FeedPlan made = plan(with_room({point("p"), point("q"), number("a"), number("b")}, 100));
  EXPECT_EQ(made.column_samples(made.fields[0]), 128U) << "12 x 64 is the first multiple of 256";
  EXPECT_EQ(made.fields[1].slot_offset - made.fields[0].slot_offset, 128U * 12);
  EXPECT_EQ(made.column_samples(made.fields[2]), 128U);
  EXPECT_EQ(made.slot_bytes, 2 * 128U * 12 + 2 * 128U * 8);
}

TEST(PlanTest, EachValueOfARowHasItsPlace) {
  const FieldFacts points = with(in_memory("p", 6), [](auto& f) { f.stored.shape = {3, 2}; });
  const LoaderOptions options = with(shuffled(), [](auto& o) {
    o.fields = {{.name = "p", .to = DType::float16, .scale = {1, 2, 3}, .shift = {4}}};
  });
  const FeedPlan made = plan(with_room({points, number("a")}), options);
  const std::vector<RowValue> values = row_values(made);
  ASSERT_EQ(values.size(), 7U);
  EXPECT_EQ(values[0].row_offset, 0U);
  EXPECT_EQ(values[0].destination, made.fields[1].slot_offset);
  EXPECT_EQ(values[0].destination_stride, 8U);
  EXPECT_FALSE(values[0].scaled);
  for (std::size_t e = 0; e < 6; ++e) {
    const RowValue& value = values[1 + e];
    EXPECT_EQ(value.row_offset, 8 + e);
    EXPECT_EQ(value.destination, made.fields[0].slot_offset + 2 * e);
    EXPECT_EQ(value.destination_stride, 12U);
    EXPECT_TRUE(value.scaled && value.from == DType::uint8 && value.to == DType::float16);
    EXPECT_EQ(value.scale, static_cast<float>(e / 2 + 1));
    EXPECT_EQ(value.shift, 4);
  }
  const LoaderOptions no_shift =
      with(shuffled(), [](auto& o) { o.fields = {{.name = "p", .to = DType::float32, .scale = {-2}}}; });
  const RowValue value = row_values(plan(with_room({points, number("a")}), no_shift))[1];
  EXPECT_TRUE(std::signbit(0.0F * value.scale + value.shift)) << "no shift does not change a zero's sign";
}

class NoBatches final : public BatchSampler {
 public:
  void start_epoch(std::uint64_t) override {}
  bool next(std::vector<std::uint64_t>&) override { return false; }
};

struct OrderRow {
  const char* name;
  std::vector<FieldFacts> fields;
  std::function<void(LoaderOptions&)> change;
  bool on_device;
};

TEST(PlanTest, TheDeviceOrdersIfTheHostNeedsNoIndices) {
  const auto zero_copy = [](LoaderOptions& o) { o.gather = GatherPath::zero_copy; };
  const auto all = [](LoaderOptions& o) { o.residency = {.kind = Kind::all}; };
  const auto half = [](LoaderOptions& o) {
    o.gather = GatherPath::zero_copy;
    o.residency = {.kind = Kind::fraction, .fraction = 0.5};
  };
  const std::vector<OrderRow> rows{
      {"zero-copy", {in_memory("a", 10)}, zero_copy, true},
      {"resident", {in_memory("a", 10), in_memory("b", 20)}, all, true},
      {"in two parts", {in_memory("a", 10)}, half, false},
      {"by the host", {in_memory("a", 10), computed("b", 20)}, kAsStored, false},
      {"by copy engine", {in_memory("a", 10), in_memory("b", kWide)}, kAsStored, false},
      {"by a batch sampler",
       {in_memory("a", 10)},
       [](LoaderOptions& o) {
         o.gather = GatherPath::zero_copy;
         o.batch_sampler = std::make_shared<NoBatches>();
       },
       false},
  };
  for (const OrderRow& row : rows) {
    EXPECT_EQ(plan(facts_of(row.fields), with(shuffled(), row.change)).orders_on_device, row.on_device)
        << row.name;
  }
}

TEST(PlanTest, ListsThatKernelsReadGoToTheDeviceIfThereIsRoom) {
  const auto plan_with = [](GatherPath gather, double resident, std::size_t beside_ring = kMiB) {
    const LoaderOptions options = with(shuffled(), [&](auto& o) {
      o.gather = gather;
      o.residency = {.kind = Kind::fraction, .fraction = resident};
      o.batch_sampler = std::make_shared<NoBatches>();
      o.device_budget_bytes = 3 * slot(1000) + beside_ring;
    });
    return plan(facts_of({in_memory("x", 1000, 100)}), options);
  };
  const std::size_t kList = aligned(kBatch * 8);
  const FeedPlan kernels = plan_with(GatherPath::zero_copy, 0);
  EXPECT_EQ(kernels.list_bytes, kList);
  EXPECT_EQ(kernels.device_staging_bytes, kList);
  EXPECT_EQ(kernels.reserved_bytes, 3 * slot(1000) + kCopyStreams * kList);
  EXPECT_EQ(plan_with(GatherPath::host, 0).list_bytes, 0U) << "no kernel reads them";
  const FeedPlan joined = plan_with(GatherPath::host, 0.5);
  EXPECT_EQ(joined.list_bytes, 2 * kList);
  EXPECT_EQ(joined.device_lists + joined.list_bytes, joined.device_staging_bytes);
  EXPECT_EQ(plan_with(GatherPath::zero_copy, 0, kCopyStreams * kList).list_bytes, kList);
  const FeedPlan tight = plan_with(GatherPath::zero_copy, 0, kCopyStreams * kList - 1);
  EXPECT_EQ(tight.list_bytes, 0U) << "kernels read them over the link";
  EXPECT_EQ(tight.reserved_bytes, 3 * slot(1000));
}

TEST(PlanTest, TheDeviceOrdersIfThereIsRoom) {
  const FeedFacts facts = facts_of({in_memory("a", 10)});
  const std::size_t ring = 3 * slot(10);
  const auto ordered_with = [&](std::size_t beside_ring) {
    return plan(facts, with(shuffled(),
                            [&](auto& o) {
                              o.gather = GatherPath::zero_copy;
                              o.device_budget_bytes = ring + beside_ring;
                            }))
        .orders_on_device;
  };
  EXPECT_TRUE(ordered_with(kOrders));
  EXPECT_FALSE(ordered_with(kOrders - 1)) << "the host does";
}

TEST(PlanTest, ResidentsAreMovedFromWhereTheyLieIfThatIsSafe) {
  const auto upload = [](const FieldFacts& field) {
    return plan(facts_of({field}), with(shuffled(), [](auto& o) { o.residency = {.kind = Kind::all}; }))
        .fields[0];
  };
  EXPECT_EQ(upload(in_memory("x", 784)).upload, Upload::staged);
  EXPECT_EQ(upload(with(in_memory("x", 784), [](auto& f) { f.page_lock = PageLock::foreign; })).upload,
            Upload::direct);
  EXPECT_EQ(upload(with(in_memory("x", 784), [](auto& f) { f.page_lock = PageLock::registered; })).upload,
            Upload::staged);
  EXPECT_EQ(upload(with(in_memory("x", 784), [](auto& f) { f.file_mapping = true; })).upload,
            Upload::gathered);
  EXPECT_EQ(upload(computed("x", 784)).upload, Upload::gathered);
  const FieldPlan whole = upload(in_memory("x", 784));
  EXPECT_EQ(whole.source, Source::none) << "nothing streams";
  EXPECT_EQ(whole.describe(nullptr), "x: uint8 784, resident");
}

TEST(PlanTest, ALockIsNotNeededForAFieldThatIsResident) {
  const FieldFacts refused = with(in_memory("x", 784), [](auto& f) { f.lock_refused = "no"; });
  const LoaderOptions options = with(shuffled(), [](auto& o) {
    o.gather = GatherPath::zero_copy;
    o.residency = {.kind = Kind::all};
  });
  EXPECT_FALSE(plan(facts_of({refused}), options).fields[0].streams());
}

TEST(PlanTest, TheSameFactsGiveTheSamePlan) {
  const FeedFacts facts = facts_of({in_memory("a", 784), computed("b", 20), in_memory("c", kWide)});
  const LoaderOptions options =
      with(shuffled(), [](auto& o) { o.residency = {.kind = Kind::fraction, .fraction = 0.3}; });
  const FeedPlan first = plan(facts, options);
  const FeedPlan second = plan(facts, options);
  EXPECT_EQ(first.describe(), second.describe());
  EXPECT_EQ(first.slot_bytes, second.slot_bytes);
  EXPECT_EQ(first.reserved_bytes, second.reserved_bytes);
}

}  // namespace
}  // namespace penstock
