#include "run/runs.hpp"

#include <gtest/gtest.h>

#include <cstdint>

namespace penstock::run {
namespace {

/// 6 layers of 5 rows of 100 bytes, whole, from the host to the device.
BoxCopy whole() {
  return {.from = {.type = MemoryType::host, .host = 1'000, .pitch = 100, .height = 5},
          .to = {.type = MemoryType::device, .device = 9'000, .pitch = 100, .height = 5},
          .width = 100,
          .height = 5,
          .depth = 6};
}

template <typename Change>
std::optional<Run> run_with(Change change) {
  BoxCopy box = whole();
  change(box);
  return as_run(box);
}

TEST(Runs, WholeLayersAreOneRun) {
  const auto run = as_run(whole());
  ASSERT_TRUE(run);
  EXPECT_EQ(run->from, 1'000u);
  EXPECT_EQ(run->to, 9'000u);
  EXPECT_EQ(run->bytes, 3'000u);
  EXPECT_EQ(run->ends, Ends::to_device);
}

TEST(Runs, BeginBehindTheRowsAndLayersBefore) {
  const auto layers = run_with([](BoxCopy& box) { box.from.z = 2; });
  ASSERT_TRUE(layers);
  EXPECT_EQ(layers->from, 1'000u + 2 * 500);
  const auto rows = run_with([](BoxCopy& box) {
    box.depth = 1;
    box.height = 3;
    box.to.z = 1;
    box.to.y = 2;
  });
  ASSERT_TRUE(rows);
  EXPECT_EQ(rows->to, 9'000u + 500 + 200);
  EXPECT_EQ(rows->bytes, 300u);
  const auto row = run_with([](BoxCopy& box) {
    box.depth = box.height = 1;
    box.width = 40;
    box.from.x = 60;
    box.to.pitch = 70;
  });
  ASSERT_TRUE(row);
  EXPECT_EQ(row->from, 1'060u);
  EXPECT_EQ(row->bytes, 40u);
}

TEST(Runs, TheEndsAreThoseOfTheCall) {
  const auto ends = [](MemoryType from, MemoryType to) {
    return run_with([&](BoxCopy& box) {
             box.from.type = from;
             box.to.type = to;
           })
        ->ends;
  };
  EXPECT_EQ(ends(MemoryType::host, MemoryType::unified), Ends::to_device);
  EXPECT_EQ(ends(MemoryType::unified, MemoryType::device), Ends::to_device);
  EXPECT_EQ(ends(MemoryType::device, MemoryType::host), Ends::to_host);
  EXPECT_EQ(ends(MemoryType::unified, MemoryType::host), Ends::to_host);
  EXPECT_EQ(ends(MemoryType::unified, MemoryType::unified), Ends::any);
}

TEST(Runs, WhatLiesApartOrMayBeRefusedIsNone) {
  using Change = void (*)(BoxCopy&);
  const Change changes[] = {
      [](BoxCopy& box) { box.width = 99; },
      [](BoxCopy& box) { box.height = 4; },
      [](BoxCopy& box) { box.to.pitch = 128; },
      [](BoxCopy& box) { box.to.pitch = 0; },
      [](BoxCopy& box) { box.from.height = 6; },
      [](BoxCopy& box) { box.from.height = 0; },
      [](BoxCopy& box) { box.from.x = 1; },
      [](BoxCopy& box) { box.from.y = 1; },
      [](BoxCopy& box) { box.to.level = 1; },
      [](BoxCopy& box) { box.to.reserved = &box; },
      [](BoxCopy& box) { box.to.type = MemoryType::array; },
      [](BoxCopy& box) { box.to.type = MemoryType{9}; },
      [](BoxCopy& box) {
        box.depth = 1;
        box.from.height = 0;
        box.from.z = 1;
      },
      // Numbers whose products would begin anew at 0.
      [](BoxCopy& box) { box.depth = SIZE_MAX / 500 + 2; },
      [](BoxCopy& box) { box.from.z = SIZE_MAX / 5; },
      [](BoxCopy& box) {
        box.from.z = 1u << 30;
        box.from.height = box.to.height = box.height = 1u << 30;
      },
  };
  for (const Change& change : changes) EXPECT_FALSE(run_with(change)) << &change - changes;
}

TEST(Runs, APlaneIsABoxOfOneLayer) {
  const PlaneCopy plane{.from = {.y = 2, .type = MemoryType::device, .device = 500, .pitch = 10},
                        .to = {.type = MemoryType::host, .host = 100, .pitch = 10},
                        .width = 10,
                        .height = 7};
  const auto run = as_run(as_box(plane));
  ASSERT_TRUE(run);
  EXPECT_EQ(run->from, 520u);
  EXPECT_EQ(run->to, 100u);
  EXPECT_EQ(run->bytes, 70u);
  EXPECT_EQ(run->ends, Ends::to_host);
}

TEST(Runs, TheAttributesOfABatchAreThoseThatTheDriverTakes) {
  const Address addresses[] = {1, 2, 3};
  const std::size_t bytes[] = {1, 1, 1};
  BatchAttributes attributes[] = {{.order = AccessOrder::any}, {.order = AccessOrder::during_call}};
  std::size_t first_of[] = {0, 2};
  Batch batch{addresses, addresses, bytes, 3, attributes, first_of, 2};
  EXPECT_TRUE(is_valid(batch));
  EXPECT_FALSE(is_in_stream_order(batch));
  attributes[1].order = AccessOrder::stream;
  EXPECT_TRUE(is_in_stream_order(batch));
  attributes[1].flags = 2;
  EXPECT_FALSE(is_valid(batch));
  attributes[1] = {.order = AccessOrder{0}};
  EXPECT_FALSE(is_valid(batch));
  attributes[1] = {};
  for (const std::size_t wrong : {0, 3}) {
    first_of[1] = wrong;
    EXPECT_FALSE(is_valid(batch)) << wrong;
  }
  first_of[0] = 1;
  first_of[1] = 2;
  EXPECT_FALSE(is_valid(batch));
  first_of[0] = 0;
  for (auto pointer : {&batch.to, &batch.from}) {
    *pointer = nullptr;
    EXPECT_FALSE(is_valid(batch));
    *pointer = addresses;
  }
  batch.kinds = 0;
  EXPECT_FALSE(is_valid(batch));
}

}  // namespace
}  // namespace penstock::run
