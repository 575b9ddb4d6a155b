#include "link_report.hpp"

#include <penstock/core/bytes.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <vector>

namespace penstock::cli {

namespace {

const LinkMeasuredPoint* point_of(const LinkSeries* series, std::size_t bytes, std::size_t pieces = 1) {
  if (series == nullptr) return nullptr;
  const auto found = std::find_if(series->points.begin(), series->points.end(), [&](const auto& point) {
    return point.bytes == bytes && point.pieces == pieces;
  });
  return found == series->points.end() ? nullptr : &*found;
}

double rate_of(const LinkMeasuredPoint& point) {
  return point.seconds.median > 0 ? static_cast<double>(point.bytes) / point.seconds.median : 0;
}

std::string rate_cell(const LinkMeasuredPoint* point) {
  return point == nullptr ? "" : format_rate(rate_of(*point));
}

std::string seconds_cell(const LinkMeasuredPoint* point, double Summary::* statistic) {
  return point == nullptr ? "" : format_seconds(point->seconds.*statistic);
}

std::vector<std::size_t> sizes_of(const LinkMeasurement& measurement) {
  std::vector<std::size_t> sizes;
  if (const auto* series = measurement.find("pinned_h2d")) {
    for (const auto& point : series->points) sizes.push_back(point.bytes);
  }
  return sizes;
}

/// A row for each size, with a cell for each column.
template <typename Sizes, typename Columns, typename Cell>
std::string grid(std::vector<std::string> header, const Sizes& sizes, const Columns& columns, Cell&& cell) {
  Table table(std::move(header));
  for (const std::size_t size : sizes) {
    std::vector<std::string> cells{format_bytes(size)};
    for (const auto& column : columns) cells.push_back(cell(size, column));
    table.add(std::move(cells));
  }
  return table.text();
}

std::string bandwidth_table(const LinkMeasurement& measurement) {
  struct Column {
    const char* title;
    const char* series;
  };
  constexpr std::array columns{Column{"pinned H2D", "pinned_h2d"},   Column{"D2H", "pinned_d2h"},
                               Column{"driver H2D", "pageable_h2d"}, Column{"D2H", "pageable_d2h"},
                               Column{"staged H2D", "staged_h2d"},   Column{"D2H", "staged_d2h"},
                               Column{"D2D", "device_d2d"}};
  std::vector<std::string> header{"size"};
  for (const Column& column : columns) header.emplace_back(column.title);
  const auto cell = [&](std::size_t bytes, const Column& column) {
    return rate_cell(point_of(measurement.find(column.series), bytes));
  };
  return "GB/s from the request until the bytes are there, median (driver: pageable memory by the driver's "
         "own copy; staged: by penstock)\n" +
         grid(std::move(header), sizes_of(measurement), columns, cell);
}

std::string pinned_table(const LinkMeasurement& measurement) {
  Table table({"pinned copy", "H2D", "minimum", "p99", "D2H", "minimum", "p99"});
  for (const std::size_t bytes : sizes_of(measurement)) {
    std::vector<std::string> cells{format_bytes(bytes)};
    for (const char* name : {"pinned_h2d", "pinned_d2h"}) {
      const auto* point = point_of(measurement.find(name), bytes);
      for (double Summary::* statistic : {&Summary::median, &Summary::minimum, &Summary::p99})
        cells.push_back(seconds_cell(point, statistic));
    }
    table.add(std::move(cells));
  }
  return "time from the request until the bytes are there\n" + table.text();
}

std::string packed_table(const LinkMeasurement& measurement) {
  const auto* in = measurement.find("packed_h2d");
  const auto* out = measurement.find("packed_d2h");
  if (in == nullptr || in->points.empty()) return {};
  std::set<std::size_t> counts;
  std::set<std::size_t> sizes;
  for (const auto& point : in->points) {
    counts.insert(point.pieces);
    const std::size_t each = point.bytes / point.pieces;
    if (each <= kMiB && each == std::size_t{256} << (2 * (sizes.size()))) sizes.insert(each);
  }
  std::vector<std::string> header{"pieces of"};
  for (const std::size_t count : counts) header.push_back(fmt::format("{} H2D / D2H", count));
  const auto cell = [&](std::size_t each, std::size_t count) {
    const auto* h2d = point_of(in, count * each, count);
    const auto* d2h = point_of(out, count * each, count);
    return h2d == nullptr ? std::string()
                          : fmt::format("{} / {}", seconds_cell(h2d, &Summary::median),
                                        seconds_cell(d2h, &Summary::median));
  };
  return "pageable pieces packed into one copy, median\n" + grid(std::move(header), sizes, counts, cell);
}

std::string gather_table(const LinkMeasurement& measurement) {
  std::set<std::size_t> samples;
  const std::array names{"gather_zero_copy", "gather_copy_engine"};
  for (const char* name : names) {
    const auto* series = measurement.find(name);
    if (series == nullptr) continue;
    for (const auto& point : series->points) samples.insert(point.bytes);
  }
  const auto cell = [&](std::size_t sample, const char* name) {
    return rate_cell(point_of(measurement.find(name), sample));
  };
  return "GB/s of samples in large shuffled batches, median\n" +
         grid({"samples of", "zero-copy", "copy-engine"}, samples, names, cell);
}

std::string host_gather_table(const LinkMeasurement& measurement) {
  const auto* series = measurement.find("gather_host");
  if (series == nullptr) return {};
  std::set<std::size_t> samples;
  std::set<std::size_t> batches;
  for (const auto& point : series->points) {
    samples.insert(point.bytes / point.pieces);
    batches.insert(point.bytes);
  }
  std::vector<std::string> header{"samples of"};
  for (const std::size_t batch : batches) header.push_back(format_bytes(batch));
  const auto cell = [&](std::size_t sample, std::size_t batch) {
    return rate_cell(point_of(series, batch, batch / sample));
  };
  return "GB/s of shuffled batches that host threads gather, by the batch's bytes, median\n" +
         grid(std::move(header), samples, batches, cell);
}

std::string host_copy_table(const LinkMeasurement& measurement) {
  Table table({"threads", "cached GB/s", "streaming GB/s"});
  for (const auto& rate : measurement.host_copy) {
    table.add({std::to_string(rate.threads), format_rate(rate.cached), format_rate(rate.streaming)});
  }
  return "host memory copy, pageable to pinned\n" + table.text();
}

std::string settings(const LinkProfile& profile) {
  return fmt::format(
      "one small copy after another every {}; staging by {} threads, in chunks of {}, {} stores\n",
      format_seconds(profile.copy_interval), profile.staging_threads, format_bytes(profile.chunk_bytes),
      profile.streaming_stores ? "streaming" : "cached");
}

}  // namespace

std::string link_report(const DeviceInfo& device, const LinkMeasurement& measurement) {
  std::string text =
      fmt::format("{}  {}, driver {}, link: {}\n{} of copied bytes compared, {} in all\n\n", device.spec,
                  device.name, device.driver, format_link(device.link),
                  format_bytes(measurement.verified_bytes), format_seconds(measurement.seconds));
  text += bandwidth_table(measurement) + "\n" + pinned_table(measurement) + "\n" + packed_table(measurement) +
          "\n" + gather_table(measurement) + "\n" + host_gather_table(measurement) + "\n" +
          host_copy_table(measurement) + "\n" + settings(measurement.profile);
  for (const std::string& note : measurement.notes) text += fmt::format("\nnote: {}\n", note);
  return text + fmt::format("\nceiling {} GB/s H2D, {} GB/s D2H\n",
                            format_rate(measurement.profile.ceiling(CopyDirection::h2d)),
                            format_rate(measurement.profile.ceiling(CopyDirection::d2h)));
}

}  // namespace penstock::cli
