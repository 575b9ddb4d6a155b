#include <penstock/core/feed_figures.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <variant>

namespace penstock {
namespace {

using ::testing::HasSubstr;

std::string table_of_the_page() {
  std::string table = "| printed | name | unit | of | meaning |\n| --- | --- | --- | --- | --- |\n";
  for (const FeedFigure& figure : feed_figures()) {
    const std::size_t indent = figure.line.find_first_not_of(' ');
    const std::string_view label = figure.line.empty() ? figure.line : figure.line.substr(indent);
    const char* const of = figure.of == FigureOf::every_feed   ? "both"
                           : figure.of == FigureOf::own_loader ? "`Loader`"
                                                               : "`feed`";
    table += std::string("| ") + (indent == 4 ? "... " : "") + std::string(label) + " | `" +
             std::string(figure.name) + "` | " + std::string(figure_unit_name(figure.unit)) + " | " + of +
             " | " + std::string(figure.help) + " |\n";
  }
  return table;
}

TEST(FeedFiguresTest, ThePageHasTheTableOfThem) {
  std::ostringstream page;
  page << std::ifstream(PENSTOCK_SOURCE "/docs/statistics.md").rdbuf();
  EXPECT_NE(page.str().find(table_of_the_page()), std::string::npos)
      << "Put this table into docs/statistics.md:\n"
      << table_of_the_page();
}

TEST(FeedFiguresTest, EachHasItsNameAndItsHelp) {
  std::set<std::string_view> names;
  for (const FeedFigure& figure : feed_figures()) {
    EXPECT_TRUE(names.insert(figure.name).second) << figure.name << " is there twice";
    EXPECT_TRUE(figure.help.ends_with('.')) << figure.name;
  }
  for (const BatchFigure& figure : batch_figures()) EXPECT_NE(figure.value, nullptr) << figure.name;
}

TEST(FeedFiguresTest, EachReadsItsOwnMember) {
  // If a figure reads another's member, it has another's value.
  FeedStatistics s;
  s.samples = 1000;
  s.batches = 10;
  s.epochs = 2;
  s.arrays = 30;
  s.failed_samples = 40;
  s.delivered_bytes = 4000000000;
  s.link_bytes = 1000000000;
  s.resident_bytes = 5;
  s.resident_seconds = 6;
  s.seconds = 4;
  s.timed_batches = 8;
  s.compute_seconds = 0.5;
  s.stall_seconds = 1.5;
  s.first_stall_seconds = 0.9;
  s.exposed_loader_seconds = 0.1;
  s.exposed_transfer_seconds = 0.2;
  s.exposed_gather_seconds = 0.3;
  s.exposed_kernel_seconds = 0.4;
  s.startup_seconds = 0.25;
  s.loader_seconds = 0.375;
  s.fetch_seconds = 0.01;
  s.collate_seconds = 0.02;
  s.write_seconds = 0.03;
  s.receive_seconds = 0.04;
  s.pin_seconds = 0.05;
  s.gather_seconds = 1.25;
  s.send_pin_seconds = 0.06;
  s.transfer_seconds = 1.6;
  s.kernel_seconds = 0.8;
  s.mean_ready = 1.7;
  s.prefetch_depth = 3;
  s.slot_wait_seconds = 0.7;
  s.slots = 11;
  s.ring_bytes = 12;
  s.land_seconds = 13;
  s.consumer_seconds = 14;
  s.link_ceiling = 1e9;
  s.sample_bytes = 15;
  const std::map<std::string_view, FigureValue> expected{
      {"samples", 1000UL},
      {"batches", 10UL},
      {"samples_per_second", 250.0},
      {"failed_samples", 40UL},
      {"arrays", 30UL},
      {"delivered_bytes", 4000000000UL},
      {"bytes", 4000000000UL},
      {"delivered_gbps", 1.0},
      {"link_bytes", 1000000000UL},
      {"link_gbps", 0.25},
      {"link_ceiling", 1e9},
      {"link_efficiency", 0.25},
      {"resident_bytes", 5UL},
      {"resident_seconds", 6.0},
      {"seconds", 4.0},
      {"epochs", 2UL},
      {"timed_batches", 8UL},
      {"compute_seconds", 0.5},
      {"stall_seconds", 1.5},
      {"stall_share", 0.75},
      {"first_stall_seconds", 0.9},
      {"exposed_loader_seconds", 0.1},
      {"exposed_transfer_seconds", 0.2},
      {"exposed_gather_seconds", 0.3},
      {"exposed_send_seconds", 0.3},
      {"exposed_kernel_seconds", 0.4},
      {"stall_other_seconds", 0.5},
      {"startup_seconds", 0.25},
      {"loader_seconds", 0.375},
      {"loader_share", 0.25},
      {"fetch_seconds", 0.01},
      {"collate_seconds", 0.02},
      {"transport_seconds", 0.07},
      {"pin_seconds", 0.05},
      {"send_seconds", 1.25},
      {"send_share", 0.5},
      {"send_pin_seconds", 0.06},
      {"gather_seconds", 1.25},
      {"gather_share", 0.5},
      {"transfer_seconds", 1.6},
      {"transfer_share", 0.8},
      {"transfer_gbps", 0.5},
      {"kernel_seconds", 0.8},
      {"kernel_share", 0.4},
      {"mean_ready", 1.7},
      {"prefetch_depth", 3UL},
      {"slot_wait_seconds", 0.7},
      {"slots", 11UL},
      {"ring_bytes", 12UL},
      {"land_seconds", 13.0},
      {"consumer_seconds", 14.0},
      {"sample_bytes", 15UL},
      {"limited_by", std::string_view("link")},
  };
  EXPECT_EQ(expected.size(), feed_figures().size());
  for (const FeedFigure& figure : feed_figures()) {
    ASSERT_TRUE(expected.contains(figure.name)) << figure.name;
    const FigureValue& value = expected.at(figure.name);
    const FigureValue got = figure.value(s);
    ASSERT_EQ(got.index(), value.index()) << figure.name;
    if (const double* number = std::get_if<double>(&value)) {
      EXPECT_NEAR(std::get<double>(got), *number, 1e-12) << figure.name;
    } else {
      EXPECT_EQ(got, value) << figure.name;
    }
  }
}

TEST(FeedFiguresTest, AFeedHasTheLinesOfItsKindOfLoader) {
  FeedStatistics s;
  s.gather_seconds = s.loader_seconds = s.startup_seconds = s.stall_seconds = s.exposed_gather_seconds = 1;
  s.timed_batches = s.batches = 4;
  for (const bool wraps : {false, true}) {
    s.wraps_loader = wraps;
    std::set<std::string_view> labels;
    for (const FeedLine& line : feed_lines(s)) {
      EXPECT_FALSE(line.figures.empty());
      for (const FeedFigure* figure : line.figures) EXPECT_TRUE(figure->applies_to(s)) << figure->name;
      if (!line.text.empty()) labels.insert(line.label);
    }
    EXPECT_EQ(labels.contains("  host gather"), !wraps);
    EXPECT_EQ(labels.contains("    for the host gather"), !wraps);
    EXPECT_EQ(labels.contains("ring"), !wraps);
    EXPECT_EQ(labels.contains("  loader"), wraps);
    EXPECT_EQ(labels.contains("  send"), wraps);
    EXPECT_EQ(labels.contains("    for sending"), wraps);
    std::ostringstream out;
    out << s;
    EXPECT_THAT(out.str(), HasSubstr("\nstages, side by side\n  "));
  }
  std::ostringstream out;
  out << s;
  EXPECT_THAT(out.str(), HasSubstr("2.00 s, 100.0 % of the time, 1.00 s to start\n"));
}

}  // namespace
}  // namespace penstock
