#include "move/flight.hpp"

#include "interpreter_lock.hpp"
#include "move/engine.hpp"

#include <penstock/core/error.hpp>

#include <algorithm>
#include <exception>
#include <utility>

namespace penstock::python {
namespace {

// True if it has ended: asking a failed one for its results throws.
template <typename Pending>
bool has_ended(const Pending& pending) {
  try {
    return pending.query();
  } catch (const std::exception&) {
    return true;
  }
}

// Nobody waits for its results any more.
template <typename Pending>
void wait_for_end(const Pending& pending) {
  try {
    pending.synchronize();
  } catch (const std::exception&) {
  }
}

}  // namespace

bool PendingTransfers::is_done() const {
  return std::all_of(transfers.begin(), transfers.end(), has_ended<Transfer>) &&
         (!read_by_others || has_ended(*read_by_others));
}

void PendingTransfers::wait() const {
  for (const auto& transfer : transfers) wait_for_end(transfer);
  if (read_by_others) wait_for_end(*read_by_others);
}

Flight::~Flight() {
  if (engine_ && !pending_.empty()) engine_->keep(std::move(pending_));
}

nb::object Flight::land() {
  Torch* const torch = engine_->is_cuda() && !pending_.transfers.empty() ? Torch::get() : nullptr;
  return land_on(torch != nullptr ? torch->current_stream(engine_->index()) : nullptr);
}

nb::object Flight::land_on(StreamHandle current) {
  if (!result_.is_valid()) throw Closed("This batch was taken already.");
  engine_->reap();
  if (pending_.transfers.empty()) {
    if (!pending_.empty()) engine_->keep(std::move(pending_));
    pending_ = {};
    return std::move(result_);
  }
  if (engine_->is_cuda() && Torch::get() != nullptr) {
    const Unlocked unlocked;
    const Stream stream = engine_->device().wrap_stream(current);
    for (const auto& transfer : pending_.transfers) stream.wait(transfer);
  } else if (!engine_->is_cuda()) {
    const Unlocked unlocked;
    for (const auto& transfer : pending_.transfers) transfer.synchronize();
    static_cast<PoolStorage&>(*pending_.storage).set_transfers({});
    pending_.transfers.clear();
  }
  // From here on the consumer's stream's order, or the storage itself, prevents early reuse.
  pending_.storage.reset();
  if (!pending_.sources.empty() || pending_.slot) engine_->keep(std::move(pending_));
  pending_ = {};
  return std::move(result_);
}

void Flight::release_sources() {
  {
    const Unlocked unlocked;
    for (const auto& transfer : pending_.transfers) transfer.synchronize_source();
  }
  pending_.sources.clear();
}

void Flights::release_sources() {
  for (Flight& flight : flights_) flight.release_sources();
}

bool Flights::sees(const FilledSlot& slot) const noexcept {
  const auto ours = std::ranges::count_if(flights_, [&](const Flight& flight) { return flight.keeps(slot); });
  return slot.storage.use_count() > 1 + ours;
}

nb::object Flights::with_others(nb::object first) {
  if (!to_all_) return first;
  nb::list all;
  all.append(std::move(first));
  for (std::size_t i = 1; i < flights_.size(); ++i) all.append(flights_[i].land());
  return all;
}

std::vector<std::byte*> Shipment::destinations() const {
  std::vector<std::byte*> places;
  for (const std::size_t offset : offsets) places.push_back(flight.pending_.storage->data() + offset);
  return places;
}

}  // namespace penstock::python
