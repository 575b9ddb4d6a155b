#include "data/bulk_reader.hpp"
#include "data/safetensors.hpp"
#include "data/weight_paths.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/data/weights.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace penstock {

namespace {

// Long enough that a read costs its bytes and not the call, short enough that all threads have work.
constexpr std::size_t kReadAtOnce = std::size_t{1} << 20;

SafetensorsHeader read_header(const File& file) {
  const auto read = [&](std::uint64_t offset, std::span<std::byte> destination) {
    return file.read(offset, destination);
  };
  return read_safetensors_header(read, file.size(), file.name());
}

void keep_rows(SafeTensor& tensor, const WeightRows& rows) {
  const auto count = tensor.shape.empty() ? 0 : static_cast<std::int64_t>(tensor.shape.front());
  if (tensor.shape.empty() || (count > 0 && tensor.bytes % tensor.shape.front() != 0)) {
    throw InvalidArgument(fmt::format("tensor '{}' of shape {} has no rows of whole bytes: load all of it",
                                      tensor.name, format_shape(tensor.shape)));
  }
  const auto place = [&](std::int64_t at) {
    return static_cast<std::uint64_t>(std::clamp<std::int64_t>(at < 0 ? at + count : at, 0, count));
  };
  const std::uint64_t begin = place(rows.begin.value_or(0));
  const std::uint64_t end = std::max(begin, place(rows.end.value_or(count)));
  const std::uint64_t row_bytes = count == 0 ? 0 : tensor.bytes / tensor.shape.front();
  tensor.offset += begin * row_bytes;
  tensor.bytes = (end - begin) * row_bytes;
  tensor.shape.front() = static_cast<std::size_t>(end - begin);
}

/// The fewest insertions, removals and replacements of characters that make `b` of `a`.
std::size_t edits_between(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row[b.size()];
}

using Names = std::unordered_set<std::string_view>;

/// Up to three of `known` that may have been meant, the most similar first.
std::vector<std::string> similar_names(const std::string& name, const Names& known) {
  std::vector<std::pair<std::size_t, std::string>> found;
  for (const std::string_view each : known) {
    const std::size_t edits = edits_between(name, each);
    if (edits <= std::max(name.size(), each.size()) / 3) found.emplace_back(edits, each);
  }
  std::ranges::sort(found);
  if (found.size() > 3) found.resize(3);
  std::vector<std::string> names;
  for (auto& [edits, each] : found) names.push_back(std::move(each));
  return names;
}

void require_names(const std::vector<std::string>& names, const std::vector<WeightFile>& files) {
  Names known;
  for (const WeightFile& file : files) {
    for (const WeightTensor& tensor : file.tensors()) known.insert(tensor.name);
  }
  const std::string where =
      files.size() == 1 ? "the file has" : fmt::format("the {} files have", files.size());
  for (const std::string& name : names) {
    if (known.contains(name)) continue;
    const auto similar = similar_names(name, known);
    throw InvalidArgument(
        similar.empty()
            ? fmt::format("no tensor is named '{}': {} {} others", name, where, known.size())
            : fmt::format("no tensor is named '{}': {} '{}'", name, where, fmt::join(similar, "', '")));
  }
}

}  // namespace

struct WeightFile::State {
  /// Bytes that lie in the file as they lie in the block.
  struct Run {
    std::size_t offset = 0;  ///< in the block
    std::size_t bytes = 0;
    std::uint64_t in_file = 0;
  };

  std::shared_ptr<BulkReader> reader;
  std::vector<SafeTensor> in_file;
  SafetensorsMetadata metadata;
  std::vector<WeightTensor> tensors;
  std::vector<Run> runs;  ///< in the order of the block
  std::size_t bytes = 0;
  std::size_t tensor_bytes = 0;

  State(std::shared_ptr<BulkReader> opened, SafetensorsHeader header)
      : reader(std::move(opened)), in_file(std::move(header.tensors)), metadata(std::move(header.metadata)) {
    for (const SafeTensor& each : in_file) {
      const auto size = static_cast<std::size_t>(each.bytes);
      tensors.push_back({.name = each.name,
                         .type = each.type,
                         .dtype = each.dtype,
                         .shape = each.shape,
                         .offset = bytes,
                         .bytes = size});
      if (size != 0) append_run(each.offset, size);
      bytes += align_up(size, kAlignment);
      tensor_bytes += size;
    }
  }

  void append_run(std::uint64_t offset, std::size_t size) {
    if (!runs.empty()) {
      Run& last = runs.back();
      if (last.offset + last.bytes == bytes && last.in_file + last.bytes == offset) {
        last.bytes += size;
        return;
      }
    }
    runs.push_back({bytes, size, offset});
  }

  void read_run(std::uint64_t offset, std::span<std::byte> destination) const {
    const std::size_t got = reader->read(offset, destination);
    if (got == destination.size()) return;
    const File& file = reader->file();
    const std::uint64_t end = file.end_before(offset + got);
    // The first that is not whole; there is one, as these bytes are a tensor's.
    const auto& cut = *std::ranges::find_if(in_file, [&](const SafeTensor& each) {
      return each.bytes != 0 && each.offset + each.bytes > std::max(end, offset);
    });
    throw Error(
        fmt::format("{} was cut short after it was opened: it now ends at byte {}, and tensor '{}' should "
                    "end at byte {}. "
                    "Restore the file and load it again.",
                    file.name(), end, cut.name, cut.offset + cut.bytes));
  }
};

WeightFile::WeightFile(const std::filesystem::path& path) {
  const File file(path);
  SafetensorsHeader header = read_header(file);
  state_ = std::make_shared<const State>(std::make_shared<BulkReader>(file), std::move(header));
}

WeightFile::WeightFile(std::shared_ptr<const State> state) : state_(std::move(state)) {}

WeightFile WeightFile::select(const std::vector<std::string>& names,
                              const std::map<std::string, WeightRows>& rows) const {
  const std::unordered_set<std::string> wanted(names.begin(), names.end());
  SafetensorsHeader chosen{.tensors = {}, .metadata = state_->metadata};
  std::ranges::copy_if(state_->in_file, std::back_inserter(chosen.tensors),
                       [&](const SafeTensor& each) { return wanted.contains(each.name); });
  for (SafeTensor& each : chosen.tensors) {
    if (const auto part = rows.find(each.name); part != rows.end()) keep_rows(each, part->second);
  }
  return WeightFile(std::make_shared<const State>(state_->reader, std::move(chosen)));
}

const std::string& WeightFile::name() const noexcept { return state_->reader->file().name(); }

const std::map<std::string, std::string>& WeightFile::metadata() const noexcept { return state_->metadata; }

WeightReads WeightFile::reads() const noexcept { return state_->reader->reads(); }

const std::vector<WeightTensor>& WeightFile::tensors() const noexcept { return state_->tensors; }

std::size_t WeightFile::bytes() const noexcept { return state_->bytes; }

std::size_t WeightFile::tensor_bytes() const noexcept { return state_->tensor_bytes; }

void WeightFile::read(std::size_t offset, std::span<std::byte> destination) const {
  if (offset > bytes() || destination.size() > bytes() - offset) {
    throw InvalidArgument(fmt::format("{} bytes from byte {} on were asked for, of a block of {} bytes",
                                      destination.size(), offset, bytes()));
  }
  const std::size_t end = offset + destination.size();
  auto run = std::ranges::upper_bound(state_->runs, offset, {},
                                      [](const State::Run& each) { return each.offset + each.bytes; });
  for (std::size_t at = offset; at < end;) {
    const std::size_t begin = run == state_->runs.end() ? end : std::clamp(run->offset, at, end);
    std::memset(destination.data() + (at - offset), 0, begin - at);
    if (begin == end) return;
    const std::size_t stop = std::min(end, run->offset + run->bytes);
    state_->read_run(run->in_file + (begin - run->offset), destination.subspan(begin - offset, stop - begin));
    at = stop;
    ++run;
  }
}

void WeightFile::read_all(HostWorkers& workers, std::span<std::byte> destination,
                          const std::atomic<bool>* stop) const {
  if (destination.size() != bytes()) {
    throw InvalidArgument(
        fmt::format("a block of {} bytes was given for one of {} bytes", destination.size(), bytes()));
  }
  workers.for_each((bytes() + kReadAtOnce - 1) / kReadAtOnce, [&](std::size_t part) {
    if (stop != nullptr && stop->load(std::memory_order_relaxed)) {
      throw Closed("loading " + name() + " was stopped");
    }
    const std::size_t offset = part * kReadAtOnce;
    read(offset, destination.subspan(offset, std::min(kReadAtOnce, bytes() - offset)));
  });
}

std::vector<WeightFile> read_weight_headers(const std::vector<std::filesystem::path>& files) {
  if (files.empty()) throw InvalidArgument("no file of weights was given");
  std::vector<WeightFile> opened;
  std::unordered_map<std::string, std::size_t> holders;  // the file of each tensor
  for (const auto& path : weight_paths(files)) {
    opened.emplace_back(path);
    for (const WeightTensor& tensor : opened.back().tensors()) {
      const auto [known, is_new] = holders.emplace(tensor.name, opened.size() - 1);
      if (is_new) continue;
      throw Error(fmt::format("{} and {} both hold a tensor '{}'. Load one of them, or each by itself.",
                              opened[known->second].name(), opened.back().name(), tensor.name));
    }
  }
  return opened;
}

std::vector<WeightFile> open_weights(const std::vector<std::filesystem::path>& files,
                                     const std::optional<std::vector<std::string>>& names,
                                     const std::map<std::string, WeightRows>& rows) {
  std::vector<WeightFile> opened = read_weight_headers(files);
  if (names) require_names(*names, opened);
  std::vector<WeightFile> chosen;
  for (WeightFile& file : opened) {
    WeightFile part = names ? file.select(*names, rows) : std::move(file);
    for (const WeightTensor& tensor : part.tensors())
      require_known_type(tensor.type, tensor.name, part.name());
    if (!names || !part.tensors().empty()) chosen.push_back(std::move(part));
  }
  return chosen;
}

}  // namespace penstock
