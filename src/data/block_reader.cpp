#include "data/shared/block_reader.hpp"

#include "data/async_reads.hpp"
#include "data/file_reader.hpp"
#include "data/kept_samples.hpp"
#include "data/mapped_files.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace penstock {

namespace {

constexpr std::uint64_t kLeastBytes = std::uint64_t{64} << 20;
// If a tenth of the pages is missing, one of a thousand looks at all of them finds none.
constexpr std::uint64_t kLooks = 64;
constexpr std::uint64_t kAsksBetweenLooks = std::uint64_t{1} << 16;

/// Each `turn` looks at other pages.
bool misses_pages(const FieldReader& reader, MappedFiles& files, std::uint64_t turn) {
  const std::size_t sample_bytes = reader.field().sample_bytes();
  const std::uint64_t part = reader.sample_count() * sample_bytes / kLooks;
  for (std::uint64_t look = 0; look < kLooks; ++look) {
    const std::uint64_t at = part * look + turn * std::uint64_t{0x9E3779B1} % part;
    const MappedFiles::Place place = files.find({reader.address(at / sample_bytes) + at % sample_bytes, 1});
    if (place.file != nullptr && !place.file->residency.has(place.offset, 1)) return true;
  }
  return false;
}

}  // namespace

BlockReader::BlockReader(std::shared_ptr<const FieldReader> reader, bool past_cache, std::size_t kept_bytes,
                         std::size_t lanes)
    : reader_(std::move(reader)),
      sample_bytes_(reader_->field().sample_bytes()),
      files_(std::make_unique<MappedFiles>()),
      lanes_(lanes) {
  if (!past_cache) return;
  for (Lane& lane : lanes_) lane.reads = std::make_unique<AsyncReads>();
  if (!std::ranges::all_of(lanes_, [](const Lane& lane) { return lane.reads->are_possible(); })) {
    for (Lane& lane : lanes_) lane.reads.reset();  // the system has few for all processes
    return;
  }
  kept_ = std::make_unique<KeptSamples<std::vector<std::byte>>>(kept_bytes, reader_->sample_count());
}

BlockReader::~BlockReader() = default;

std::uint64_t BlockReader::bytes_of(const FieldReader& reader) noexcept {
  const std::uint64_t samples = reader.sample_count();
  const std::size_t bytes = reader.field().sample_bytes();
  const std::ptrdiff_t step = samples > 1 ? reader.address(1) - reader.address(0) : 0;
  return samples * (step > 0 ? std::min(bytes, static_cast<std::size_t>(step)) : bytes);
}

bool BlockReader::is_of(const FieldReader& reader) {
  if (reader.address(0) == nullptr || bytes_of(reader) < kLeastBytes) return false;
  MappedFiles files;
  return misses_pages(reader, files, 0);
}

void BlockReader::begin(std::size_t lane, std::span<const std::uint64_t> indices,
                        std::span<std::byte> destination) {
  auto& [reads, queue] = lanes_[lane];
  Begun& begun = queue.emplace_back(Begun{indices, destination});
  if (kept_ == nullptr) return ask(indices);
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const MappedFiles::Place place = files_->find({reader_->address(indices[i]), sample_bytes_});
    const bool is_missing = kept_->find(indices[i]) == nullptr && place.file != nullptr &&
                            !place.file->has(place.offset, sample_bytes_);
    if (is_missing && place.is_same && place.file->direct.may_be_read()) {
      reads->want(place.file->direct, {place.offset, place_of(begun, i)}, i);
      begun.direct.push_back(i);
    } else {
      if (is_missing) ask(indices.subspan(i, 1));
      begun.others.push_back(i);
    }
  }
  reads->begin();
}

void BlockReader::end(std::size_t lane, StoreKind stores) {
  auto& [reads, queue] = lanes_[lane];
  const Begun begun = std::move(queue.front());
  queue.pop_front();
  if (kept_ == nullptr) return reader_->gather(begun.indices, begun.destination, stores);
  const auto failed = reads->end([&] {
    for (const std::size_t i : begun.others) {
      if (const auto* const kept = kept_->find(begun.indices[i])) {
        copy_bytes(place_of(begun, i).data(), kept->data(), sample_bytes_, stores);
      } else {
        read(begun, i, stores);
      }
    }
  });
  for (const std::size_t i : failed) read(begun, i, stores);
  for (const std::size_t i : begun.direct) {
    const auto bytes = place_of(begun, i);
    kept_->keep(begun.indices[i], sample_bytes_, bytes.begin(), bytes.end());
  }
  direct_reads_ += begun.direct.size();
}

void BlockReader::drop() noexcept {
  for (Lane& lane : lanes_) {
    if (lane.reads != nullptr) lane.reads->drop();
    lane.begun.clear();
  }
}

std::span<std::byte> BlockReader::place_of(const Begun& begun, std::size_t i) const noexcept {
  return begun.destination.subspan(i * sample_bytes_, sample_bytes_);
}

/// A sample without a direct read.
void BlockReader::read(const Begun& begun, std::size_t i, StoreKind stores) const {
  const std::uint64_t index = begun.indices[i];
  const MappedFiles::Place place = files_->find({reader_->address(index), sample_bytes_});
  if (place.file == nullptr || !place.is_same)
    return reader_->gather({&index, 1}, place_of(begun, i), stores);
  // A cut file is an error. Touched, it would be a signal.
  read_samples(place.file->direct.file(), reader_->field(), index, place.offset, place_of(begun, i));
}

void BlockReader::ask(std::span<const std::uint64_t> indices) const noexcept {
  if (!misses_pages_.load(std::memory_order_relaxed)) return;
  static const auto page = static_cast<std::uintptr_t>(::getpagesize());
  for (const std::uint64_t index : indices) {
    const auto begin = reinterpret_cast<std::uintptr_t>(reader_->address(index));
    ::madvise(reinterpret_cast<void*>(begin - begin % page), begin % page + sample_bytes_, MADV_WILLNEED);
  }
  const std::uint64_t before = asked_.fetch_add(indices.size(), std::memory_order_relaxed);
  const std::uint64_t turn = (before + indices.size()) / kAsksBetweenLooks;
  if (turn != before / kAsksBetweenLooks && !misses_pages(*reader_, *files_, turn)) {
    misses_pages_.store(false, std::memory_order_relaxed);
  }
}

}  // namespace penstock
