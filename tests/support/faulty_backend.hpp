#pragma once

#include <penstock/core/error.hpp>
#include <penstock/device/backend.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

namespace penstock::testing {

/// Every entry of Backend, for FaultyBackend.
enum class Entry : std::size_t {
  memory,
  can_reach,
  enable_peer,
  stream_create,
  stream_destroy,
  stream_query,
  stream_synchronize,
  stream_wait_event,
  stream_wait_value,
  stream_occupy,
  event_create,
  event_destroy,
  event_record,
  event_query,
  event_synchronize,
  event_elapsed,
  device_allocate,
  device_allocate_shared,
  device_free,
  host_register,
  host_unregister,
  host_allocate,
  host_free,
  kind_of,
  owns,
  is_open_to_peers,
  device_address,
  memory_export,
  memory_import,
  memory_close,
  copy,
  fill,
  copy_each,
  copy_pieces,
  gather,
  split_rows,
  fill_order,
  hash,
  make_jpeg_decoder,
  last_ = make_jpeg_decoder,
};

/// Handles that were made through a FaultyBackend and not given back.
struct LiveHandles {
  std::size_t streams = 0;
  std::size_t events = 0;
  std::size_t device_allocations = 0;
  std::size_t host_allocations = 0;
  std::size_t registrations = 0;
  std::size_t imports = 0;
  bool operator==(const LiveHandles&) const = default;
};

/// Wraps a backend and fails, delays, counts and intercepts its entries. A failing entry throws before the
/// wrapped one is called; the noexcept entries never fail. Thread-safe.
class FaultyBackend final : public Backend {
 public:
  static constexpr std::size_t kForever = std::numeric_limits<std::size_t>::max();

  explicit FaultyBackend(std::shared_ptr<Backend> inner) : inner_(std::move(inner)), info_(inner_->info()) {}

  /// The `nth` call of `entry` from now (1: the next one) and the `times - 1` after it call `thrower`, which
  /// throws; an empty one throws a DeviceError named PENSTOCK_INJECTED.
  void fail(Entry entry, std::size_t nth = 1, std::size_t times = 1, std::function<void()> thrower = {}) {
    const std::lock_guard lock(mutex_);
    Plan& plan = plans_[index(entry)];
    plan.first = plan.calls + nth;
    plan.times = times;
    plan.thrower = std::move(thrower);
  }

  /// No entry fails from now on.
  void heal() {
    const std::lock_guard lock(mutex_);
    for (Plan& plan : plans_) plan.times = 0;
  }

  /// Each later call of `entry` first calls `hook` on its own thread; an empty one ends that.
  void before(Entry entry, std::function<void()> hook) {
    const std::lock_guard lock(mutex_);
    plans_[index(entry)].hook = std::move(hook);
  }

  /// Each later call of `entry` sleeps this long first; zero ends that.
  void delay(Entry entry, std::chrono::microseconds time) {
    const std::lock_guard lock(mutex_);
    plans_[index(entry)].delay = time;
  }

  /// Whether peers get to its memory, as far as it says.
  void open_to_peers(bool open) { is_open_to_peers_ = open; }

  /// Multiplies the times between events.
  void set_clock_rate(double rate) { clock_rate_ = rate; }

  /// The stream of the next `copy` first waits until `word`, in locked memory, is 1.
  void hold_back_next_copy(const std::uint32_t* word) { copy_waits_for_ = word; }
  /// The streams of all later copies and gathers first wait for that; null ends it.
  void hold_back_all(const std::uint32_t* word) { all_wait_for_ = word; }

  [[nodiscard]] std::size_t calls(Entry entry) const {
    const std::lock_guard lock(mutex_);
    return plans_[index(entry)].calls;
  }

  /// Bytes passed to `copy` in a direction.
  [[nodiscard]] std::size_t copied_bytes(CopyDirection direction) const {
    return copied_[static_cast<std::size_t>(direction)].load();
  }

  /// Bytes that were passed to `copy` to the device since `note_copies`: one figure for those in a row on one
  /// stream, which is another one than before.
  void note_copies() {
    const std::lock_guard lock(mutex_);
    in_a_row_.emplace();
  }
  [[nodiscard]] std::vector<std::size_t> in_a_row() const {
    const std::lock_guard lock(mutex_);
    std::vector<std::size_t> bytes;
    for (const auto& [stream, sum] : *in_a_row_) bytes.push_back(sum);
    return bytes;
  }

  [[nodiscard]] LiveHandles live() const {
    const std::lock_guard lock(mutex_);
    return {streams_.size(), events_.size(),     device_.size(),
            host_.size(),    registered_.size(), imported_.size()};
  }

  const DeviceInfo& info() const noexcept override { return info_; }
  /// Call it before the first use.
  void claim_batched_copies(bool claimed) { info_.batched_copies = claimed; }
  /// As a GPU: nothing but the claim changes. Call it before making anything that asks.
  void claim_memory_of_its_own() { info_.in_host_memory = false; }
  /// Call it before making anything that reads the figures.
  void tune(const DeviceTuning& tuning) { info_.tuning = tuning; }
  DeviceMemory memory() const override {
    enter(Entry::memory);
    return inner_->memory();
  }

  ContextHandle context() const noexcept override { return inner_->context(); }
  bool can_reach(const Backend& peer) const override {
    enter(Entry::can_reach);
    return inner_->can_reach(peer);
  }
  void enable_peer(const Backend& peer) override {
    enter(Entry::enable_peer);
    inner_->enable_peer(peer);
  }

  StreamHandle stream_create(StreamPriority priority) override {
    enter(Entry::stream_create);
    return keep(streams_, inner_->stream_create(priority));
  }
  void stream_destroy(StreamHandle stream) noexcept override {
    leave(Entry::stream_destroy, streams_, stream);
    inner_->stream_destroy(stream);
  }
  bool stream_query(StreamHandle stream) override {
    enter(Entry::stream_query);
    return inner_->stream_query(stream);
  }
  void stream_synchronize(StreamHandle stream) override {
    enter(Entry::stream_synchronize);
    inner_->stream_synchronize(stream);
  }
  void stream_wait_event(StreamHandle stream, EventHandle event) override {
    enter(Entry::stream_wait_event);
    inner_->stream_wait_event(stream, event);
  }
  void stream_wait_value(StreamHandle stream, const std::uint32_t* word, std::uint32_t value) override {
    enter(Entry::stream_wait_value);
    inner_->stream_wait_value(stream, word, value);
  }
  void stream_occupy(StreamHandle stream, double seconds) override {
    enter(Entry::stream_occupy);
    inner_->stream_occupy(stream, seconds);
  }

  EventHandle event_create(EventTiming timing, EventWait wait) override {
    enter(Entry::event_create);
    return keep(events_, inner_->event_create(timing, wait));
  }
  void event_destroy(EventHandle event) noexcept override {
    leave(Entry::event_destroy, events_, event);
    inner_->event_destroy(event);
  }
  void event_record(EventHandle event, StreamHandle stream) override {
    enter(Entry::event_record);
    inner_->event_record(event, stream);
  }
  bool event_query(EventHandle event) override {
    enter(Entry::event_query);
    return inner_->event_query(event);
  }
  void event_synchronize(EventHandle event) override {
    enter(Entry::event_synchronize);
    inner_->event_synchronize(event);
  }
  double event_elapsed(EventHandle begin, EventHandle end) override {
    enter(Entry::event_elapsed);
    return clock_rate_ * inner_->event_elapsed(begin, end);
  }

  void* device_allocate(std::size_t bytes) override {
    enter(Entry::device_allocate);
    return keep(device_, inner_->device_allocate(bytes));
  }
  void* device_allocate_shared(std::size_t bytes) override {
    enter(Entry::device_allocate_shared);
    return keep(device_, inner_->device_allocate_shared(bytes));
  }
  void device_free(void* data) noexcept override {
    leave(Entry::device_free, device_, data);
    inner_->device_free(data);
  }
  void host_register(void* data, std::size_t bytes, bool read_only) override {
    enter(Entry::host_register);
    inner_->host_register(data, bytes, read_only);
    keep(registered_, data);
  }
  void host_unregister(void* data) noexcept override {
    leave(Entry::host_unregister, registered_, data);
    inner_->host_unregister(data);
  }
  void* host_allocate(std::size_t bytes) override {
    enter(Entry::host_allocate);
    return keep(host_, inner_->host_allocate(bytes));
  }
  void host_free(void* data) noexcept override {
    leave(Entry::host_free, host_, data);
    inner_->host_free(data);
  }
  MemoryKind kind_of(const void* data) const override {
    enter(Entry::kind_of);
    return inner_->kind_of(data);
  }
  bool owns(const void* data) const override {
    enter(Entry::owns);
    return inner_->owns(data);
  }
  bool is_open_to_peers(const void* data) const override {
    enter(Entry::is_open_to_peers);
    return is_open_to_peers_ && inner_->is_open_to_peers(data);
  }
  void* device_address(void* locked) const override {
    enter(Entry::device_address);
    return inner_->device_address(locked);
  }
  PeerMemoryHandle memory_export(const void* data) const override {
    enter(Entry::memory_export);
    return inner_->memory_export(data);
  }
  void* memory_import(const PeerMemoryHandle& handle) override {
    enter(Entry::memory_import);
    return keep(imported_, inner_->memory_import(handle));
  }
  void memory_close(void* imported) noexcept override {
    leave(Entry::memory_close, imported_, imported);
    inner_->memory_close(imported);
  }

  void copy(void* destination, const void* source, std::size_t bytes, CopyDirection direction,
            StreamHandle stream) override {
    enter(Entry::copy);
    if (const std::uint32_t* const word = copy_waits_for_.exchange(nullptr)) {
      inner_->stream_wait_value(stream, word, 1);
    }
    hold_back(stream);
    inner_->copy(destination, source, bytes, direction, stream);
    copied_[static_cast<std::size_t>(direction)] += bytes;
    if (direction == CopyDirection::h2d) note(stream, bytes);
  }
  void fill(void* destination, std::uint8_t value, std::size_t bytes, StreamHandle stream) override {
    enter(Entry::fill);
    inner_->fill(destination, value, bytes, stream);
  }
  void copy_each(std::span<const CopyPiece> pieces, CopyDirection direction, StreamHandle stream) override {
    try {
      enter(Entry::copy_each);
    } catch (...) {  // it may fail half-way
      inner_->copy_each(pieces.first(pieces.size() / 2), direction, stream);
      throw;
    }
    hold_back(stream);
    inner_->copy_each(pieces, direction, stream);
    for (const CopyPiece& piece : pieces) copied_[static_cast<std::size_t>(direction)] += piece.bytes;
  }
  void copy_pieces(const CopyPiece* pieces, std::size_t count, StreamHandle stream) override {
    enter(Entry::copy_pieces);
    inner_->copy_pieces(pieces, count, stream);
  }
  void gather(const GatherRequest& request, StreamHandle stream) override {
    enter(Entry::gather);
    hold_back(stream);
    inner_->gather(request, stream);
  }
  void split_rows(const SplitRequest& request, StreamHandle stream) override {
    enter(Entry::split_rows);
    hold_back(stream);
    inner_->split_rows(request, stream);
  }
  void fill_order(const OrderRequest& request, StreamHandle stream) override {
    enter(Entry::fill_order);
    inner_->fill_order(request, stream);
  }
  void hash(const HashRequest& request, StreamHandle stream) override {
    enter(Entry::hash);
    inner_->hash(request, stream);
  }
  std::unique_ptr<JpegDecoder> make_jpeg_decoder(const JpegDecoderOptions& options) override {
    enter(Entry::make_jpeg_decoder);
    return inner_->make_jpeg_decoder(options);
  }

 private:
  struct Plan {
    std::size_t calls = 0;
    std::size_t first = 0;
    std::size_t times = 0;
    std::function<void()> thrower;
    std::function<void()> hook;
    std::chrono::microseconds delay{0};
  };

  using Handles = std::unordered_set<void*>;

  static constexpr std::size_t index(Entry entry) { return static_cast<std::size_t>(entry); }

  std::pair<bool, std::function<void()>> count(Entry entry) const {
    std::chrono::microseconds pause{0};
    std::function<void()> hook;
    std::pair<bool, std::function<void()>> verdict;
    {
      const std::lock_guard lock(mutex_);
      Plan& plan = plans_[index(entry)];
      ++plan.calls;
      pause = plan.delay;
      hook = plan.hook;
      verdict.first = plan.times > 0 && plan.calls >= plan.first && plan.calls - plan.first < plan.times;
      if (verdict.first) verdict.second = plan.thrower;
    }
    if (hook) hook();
    if (pause.count() > 0) std::this_thread::sleep_for(pause);
    return verdict;
  }

  void enter(Entry entry) const {
    const auto [fails, thrower] = count(entry);
    if (!fails) return;
    if (thrower) thrower();
    throw DeviceError("PENSTOCK_INJECTED", "entry " + std::to_string(index(entry)), 999,
                      "A test asked for this failure.");
  }

  void hold_back(StreamHandle stream) {
    if (const std::uint32_t* const word = all_wait_for_) inner_->stream_wait_value(stream, word, 1);
  }

  void note(StreamHandle stream, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    if (!in_a_row_) return;
    if (in_a_row_->empty() || in_a_row_->back().first != stream) in_a_row_->emplace_back(stream, 0);
    in_a_row_->back().second += bytes;
  }

  void* keep(Handles& handles, void* handle) {
    const std::lock_guard lock(mutex_);
    handles.insert(handle);
    return handle;
  }

  void leave(Entry entry, Handles& handles, void* handle) noexcept {
    count(entry);
    const std::lock_guard lock(mutex_);
    handles.erase(handle);
  }

  std::shared_ptr<Backend> inner_;
  DeviceInfo info_;
  mutable std::mutex mutex_;
  mutable std::array<Plan, static_cast<std::size_t>(Entry::last_) + 1> plans_;
  std::optional<std::vector<std::pair<StreamHandle, std::size_t>>> in_a_row_;
  Handles streams_, events_, device_, host_, registered_, imported_;
  std::array<std::atomic<std::size_t>, 3> copied_{};
  std::atomic<const std::uint32_t*> copy_waits_for_{nullptr};
  std::atomic<const std::uint32_t*> all_wait_for_{nullptr};
  std::atomic<double> clock_rate_{1};
  std::atomic<bool> is_open_to_peers_{true};
};

}  // namespace penstock::testing
