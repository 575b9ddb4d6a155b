#include "loader/peer_parts.hpp"

#include "core/shared/pause.hpp"
#include "device/shared/trial_bytes.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/memory/pool.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <utility>

namespace penstock {

namespace {

/// A process puts the part of batch n + 2 in its place when it has seen the offers of all for batch n + 1.
/// They made these when they had taken the parts of batch n, which lay in that place before.
constexpr std::uint64_t kPlaces = 2;

/// What a process tells the others of its places. They begin with random bytes of this seed.
struct Offer {
  PeerMemoryHandle memory;
  std::uint64_t seed = 0;
};

std::string text_of(const Offer& offer) { return {reinterpret_cast<const char*>(&offer), sizeof offer}; }

/// True if a copy from `source`, of another process, brings the bytes that are expected.
bool brings(const Device& device, const std::byte* source, std::span<const std::byte> expected) {
  Pool pool = make_device_pool(device, {.segment_bytes = kTrialBytes});
  const Buffer here = pool.allocate(expected.size());
  std::vector<std::byte> back(expected.size());
  const Stream stream = device.create_stream();
  stream.copy(here.data(), source, back.size(), CopyDirection::d2d);
  stream.copy(back.data(), here.data(), back.size(), CopyDirection::d2h);
  stream.synchronize();
  return std::ranges::equal(back, expected);
}

}  // namespace

PeerParts::PeerParts(Device device, ProcessBoard& board, const FeedPlan& whole, const BatchSplit& split)
    : device_(std::move(device)), board_(board), whole_(whole), others_(board.size()) {
  for (std::size_t rank = 0; rank < board_.size(); ++rank) {
    std::vector<std::size_t> offsets;
    std::size_t bytes = 0;
    for (const FieldPlan& field : whole_.fields) {
      offsets.push_back(bytes);
      bytes += align_up(split.largest(whole_.batch, rank) * field.delivered_bytes, kSlotAlignment);
    }
    offsets_.push_back(std::move(offsets));
    place_bytes_.push_back(std::max(bytes, kSlotAlignment));
  }
  own_ = static_cast<std::byte*>(device_.allocate_shared(kPlaces * place_bytes_[board_.rank()]));
  try {
    std::string name;
    try {
      name = text_of(Offer{name_memory(device_, own_), write_trial()});
    } catch (const Unsupported& error) {
      refusal_ = error.what();
    }
    const std::vector<std::string> names = board_.exchange(name);
    if (refusal_.empty()) refusal_ = map_others(names);
    const std::vector<std::string> refusals = board_.exchange(refusal_.substr(0, ProcessBoard::kLongestText));
    for (std::size_t rank = 0; rank < refusals.size() && refusal_.empty(); ++rank) {
      if (!refusals[rank].empty()) refusal_ = fmt::format("rank {}: {}", rank, refusals[rank]);
    }
  } catch (...) {
    leave(0, {});
    throw;
  }
  if (refusal_.empty()) return;
  detach();
  free_places();
}

PeerParts::~PeerParts() { leave(0, {}); }

std::size_t PeerParts::trial_size(std::size_t rank) const {
  return std::min(kTrialBytes, kPlaces * place_bytes_[rank]);
}

std::uint64_t PeerParts::write_trial() const {
  const std::uint64_t seed = trial_seed();
  const std::vector<std::byte> bytes = trial_bytes(trial_size(board_.rank()), seed);
  const Stream stream = device_.create_stream();
  stream.copy(own_, bytes.data(), bytes.size(), CopyDirection::h2d);
  stream.synchronize();
  return seed;
}

std::string PeerParts::map_others(const std::vector<std::string>& names) {
  for (std::size_t rank = 0; rank < names.size(); ++rank) {
    if (rank == board_.rank()) continue;
    Offer offer;
    if (names[rank].size() != sizeof offer) return "another process cannot name its memory";
    std::memcpy(&offer, names[rank].data(), sizeof offer);
    try {
      others_[rank].emplace(device_, offer.memory);
      if (!brings(device_, others_[rank]->data(), trial_bytes(trial_size(rank), offer.seed))) {
        return fmt::format("the bytes of rank {} arrived wrong. {}", rank, kAfterWrongTrial);
      }
    } catch (const Unsupported& error) {
      return error.what();
    } catch (const OutOfMemory& error) {  // nobody knows whether they would be right
      return fmt::format("copies from the others cannot be tried: {}", error.what());
    } catch (const DeviceError&) {
      // A process that ends frees its memory a little before its mark on the board.
      const auto end = Clock::now() + std::chrono::seconds(1);
      nap_until([&] { return board_.is_gone(rank) || Clock::now() > end; });
      if (board_.is_gone(rank)) throw Error(board_.trouble(rank));
      throw;
    }
  }
  return {};
}

void PeerParts::check_others(std::uint64_t turn) const {
  for (std::size_t rank = 0; rank < board_.size(); ++rank) {
    if (rank == board_.rank()) continue;
    std::string trouble = board_.trouble(rank);
    if (trouble.empty() && board_.get(rank, kGeneration) != generation_) {
      trouble = fmt::format(
          "Rank {} of the group (PID {}) went to another epoch or place. All processes of a group must ask "
          "for equally many batches, and start epochs and load states together.",
          rank, board_.process(rank));
    }
    // Asked last: its part may have come before the trouble.
    if (!trouble.empty() && board_.get(rank, kOffered) <= turn) throw Error(trouble);
  }
}

void PeerParts::put(std::uint64_t turn, const DeviceBatch& part, const Stream& stream) const {
  const std::size_t rank = board_.rank();
  std::byte* const place = own_ + turn % kPlaces * place_bytes_[rank];
  for (std::size_t f = 0; f < part.field_count(); ++f) {
    const DeviceField& field = part.field(f);
    if (field.bytes > 0) {
      stream.copy(place + offset_of(rank, f), field.data, field.bytes, CopyDirection::d2d);
    }
  }
}

void PeerParts::offer(std::uint64_t turn, std::uint64_t draw) noexcept {
  board_.set(kDraw + turn % kPlaces, draw);
  board_.set(kOffered, turn + 1);
}

void PeerParts::check_draw(std::size_t rank, std::uint64_t turn) const {
  const std::size_t word = kDraw + turn % kPlaces;
  if (board_.get(rank, word) == board_.get(board_.rank(), word)) return;
  throw Error(
      fmt::format("Rank {} of the group (PID {}) has drawn other samples than rank {}. The samplers of all "
                  "processes of a group must give the same batches: seed them alike, and start epochs "
                  "together.",
                  rank, board_.process(rank), board_.rank()));
}

bool PeerParts::wait_for_offers(std::uint64_t turn, FunctionRef<bool()> stopped) const {
  const std::unique_ptr<std::atomic<int>, void (*)(std::atomic<int>*)> ends(
      &awaited_, [](std::atomic<int>* rank) { rank->store(-1, std::memory_order_relaxed); });
  awaited_since_.store(Clock::now(), std::memory_order_relaxed);
  for (std::size_t rank = 0; rank < board_.size(); ++rank) {
    awaited_.store(static_cast<int>(rank), std::memory_order_release);
    bool stop = false;
    nap_until([&] {
      stop = stopped();
      if (stop || board_.get(rank, kOffered) > turn) return true;
      check_others(turn);
      return false;
    });
    if (stop) return false;
    check_draw(rank, turn);
  }
  return true;
}

std::optional<PeerParts::Awaited> PeerParts::awaited() const noexcept {
  const int rank = awaited_.load(std::memory_order_acquire);
  if (rank < 0) return std::nullopt;
  return Awaited{static_cast<std::size_t>(rank), awaited_since_.load(std::memory_order_relaxed)};
}

void PeerParts::take(std::size_t rank, std::uint64_t turn, const BatchSplit::Part& part,
                     const std::vector<DeviceField>& fields, const Stream& stream) const {
  const std::byte* const base = rank == board_.rank() ? own_ : others_[rank]->data();
  const std::byte* const place = base + turn % kPlaces * place_bytes_[rank];
  for (std::size_t f = 0; f < fields.size(); ++f) {
    const std::size_t sample = whole_.fields[f].delivered_bytes;
    if (part.count * sample == 0) continue;
    stream.copy(fields[f].data + part.begin * sample, place + offset_of(rank, f), part.count * sample,
                CopyDirection::d2d);
  }
}

void PeerParts::taken(std::uint64_t turn) {
  for (std::size_t rank = 0; rank < board_.size(); ++rank) {
    if (board_.is_gone(rank)) throw Error(board_.trouble(rank));
  }
  board_.set(kTaken, turn + 1);
}

void PeerParts::start_anew(const std::string& place) {
  if (is_over_) {
    throw Error("The processes of the group did not come together: make another loader in all of them.");
  }
  is_over_ = true;  // unless all come
  board_.set(kGeneration, ++generation_);
  const std::vector<std::string> places = board_.exchange(place);  // nobody makes batches any more
  board_.set(kOffered, 0);
  board_.set(kTaken, 0);
  board_.complain({});
  static_cast<void>(board_.exchange({}));  // all have done so
  is_over_ = false;
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    if (places[rank] == place) continue;
    throw InvalidArgument(
        fmt::format("The processes of a group go to different places: rank {} to {}, and rank {} to {}.",
                    board_.rank(), place, rank, places[rank]));
  }
}

bool PeerParts::one_is(bool (ProcessBoard::*gone)(std::size_t) const noexcept) const noexcept {
  for (std::size_t rank = 0; rank < board_.size(); ++rank) {
    if ((board_.*gone)(rank)) return true;
  }
  return false;
}

void PeerParts::end_if_over() noexcept {
  if (is_over_ || one_is(&ProcessBoard::has_ended) || one_is(&ProcessBoard::has_left)) detach();
  if (is_over_) board_.leave();
}

void PeerParts::detach() noexcept {
  for (auto& other : others_) other.reset();
  board_.set(kDetached, 1);
}

template <typename IsDone>
bool PeerParts::wait_for_others(Clock::time_point end, IsDone&& is_done) const noexcept {
  const auto all_are_done = [&] {
    for (std::size_t rank = 0; rank < board_.size(); ++rank) {
      if (rank != board_.rank() && !board_.has_ended(rank) && !is_done(rank)) return false;
    }
    return true;
  };
  bool done = false;
  nap_until([&] { return (done = all_are_done()) || Clock::now() >= end; });
  return done;
}

void PeerParts::leave(std::uint64_t count, std::chrono::milliseconds patience) noexcept {
  if (std::exchange(left_, true)) return;
  wait_for_others(Clock::now() + patience, [&](std::size_t rank) {
    return board_.get(rank, kTaken) >= count || !board_.trouble(rank).empty() ||
           board_.get(rank, kGeneration) != generation_ || one_is(&ProcessBoard::has_ended);
  });
  detach();
  board_.leave();
  free_places();
}

void PeerParts::free_places() noexcept {
  if (own_ == nullptr) return;
  const bool unmapped = wait_for_others(Clock::now() + std::chrono::seconds(2), [&](std::size_t rank) {
    return board_.get(rank, kDetached) != 0 || board_.has_left(rank);
  });
  if (unmapped) device_.deallocate(own_);
  own_ = nullptr;
}

}  // namespace penstock
