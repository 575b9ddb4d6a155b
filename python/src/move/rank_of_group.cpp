#include "move/rank_of_group.hpp"

#include "interpreter_lock.hpp"
#include "signals.hpp"

#include <penstock/core/copy_bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/loader/fill_ranks.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <span>
#include <utility>
#include <vector>

namespace penstock::python {
namespace {

struct Source {
  std::size_t offset = 0;
  std::span<const std::byte> bytes;
};

/// Writes the arrays at these offsets, which ascend. What lies between them stays as it is.
FillFunction copies_of(const std::vector<Leaf>& leaves, const std::vector<std::size_t>& offsets,
                       StoreKind stores) {
  std::vector<Source> sources;
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    if (leaves[i].bytes > 0) sources.push_back({offsets[i], {leaves[i].data, leaves[i].bytes}});
  }
  return [sources = std::move(sources), stores](std::size_t offset, std::span<std::byte> destination) {
    const std::size_t end = offset + destination.size();
    auto source = std::ranges::upper_bound(
        sources, offset, {}, [](const Source& each) { return each.offset + each.bytes.size(); });
    for (; source != sources.end() && source->offset < end; ++source) {
      const std::size_t begin = std::max(source->offset, offset);
      const std::size_t stop = std::min(source->offset + source->bytes.size(), end);
      copy_bytes(destination.data() + (begin - offset), source->bytes.data() + (begin - source->offset),
                 stop - begin, stores);
    }
  };
}

/// What the exception that is being handled says.
std::string reason() {
  try {
    throw;
  } catch (const nb::python_error& error) {
    const Locked locked;
    return message_of(error.value());
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an unknown exception";
  }
}

}  // namespace

std::string message_of(nb::handle error) {
  try {
    const nb::str text(error);
    const nb::object bytes = nb::steal(PyUnicode_AsEncodedString(text.ptr(), "utf-8", "backslashreplace"));
    if (!bytes.is_valid()) throw nb::python_error();
    const std::string message(PyBytes_AsString(bytes.ptr()),
                              static_cast<std::size_t>(PyBytes_Size(bytes.ptr())));
    if (!message.empty()) return message;
  } catch (const nb::python_error&) {  // it cannot say
  }
  return nb::type_name(error.type()).c_str();
}

ProcessBoardOptions GroupBoard::options() const {
  return {.meeting = {.key = key_, .processes = processes_, .while_waiting = &hear_signals},
          .rank = rank_,
          .timeout = std::chrono::milliseconds(static_cast<std::int64_t>(timeout_seconds_ * 1e3))};
}

void GroupBoard::use(const std::function<void(ProcessBoard&)>& use, std::function<void()> look) {
  if (generation_ != fork_generation()) {
    throw Unsupported("This process was forked from the one that made the ProcessGroup: make one here.");
  }
  const std::lock_guard lock(mutex_);
  look_ = std::move(look);
  try {
    if (!board_) {
      ProcessBoardOptions asking = options();
      asking.meeting.key += ", transfers";
      asking.meeting.while_waiting = [this] {
        hear_signals();
        if (look_) look_();
      };
      board_ = std::make_unique<ProcessBoard>(std::move(asking));
    }
    use(*board_);
  } catch (const InvalidArgument&) {  // in all processes alike
    throw;
  } catch (...) {
    if (board_) board_->complain(reason());
    board_.reset();
    throw;
  }
}

std::optional<LinkProfile> RankOfGroup::profile() const {
  const LinkProfile& profile = engine->profile();
  return profile.measured ? std::optional(profile) : std::nullopt;
}

void RankOfGroup::tell(const std::string& error) const {
  const Unlocked unlocked;
  try {
    group->use([&](ProcessBoard& board) { board.agree("it failed: " + error); });
  } catch (const std::exception&) {  // the caller has an error already
  }
}

Flight RankOfGroup::send(nb::handle tree, nb::handle expand) const {
  std::optional<Shipment> shipment;
  NestLayout layout;
  std::vector<FilledBlock> blocks;
  std::optional<Stream> after;
  std::string facts;
  try {
    shipment.emplace(engine->load(tree, expand, false, nullptr));
    const std::vector<Leaf>& leaves = shipment->nest.leaves();
    // Groups depend on how the memory of this process is locked, and the others have another.
    layout = lay_out_in_order(leaves);
    const StoreKind stores = engine->profile().streaming_stores ? StoreKind::streaming : StoreKind::cached;
    if (!leaves.empty()) {
      blocks.push_back({shipment->flight.pending_.storage->data(), layout.bytes,
                        copies_of(leaves, layout.offsets, stores)});
    }
    after = engine->stream_of(shipment->flight);
    facts = "it sends " + shipment->nest.describe();
  } catch (const nb::python_error& error) {
    tell(message_of(error.value()));
    throw;
  } catch (const std::exception& error) {
    tell(error.what());
    throw;
  }
  {
    const Unlocked unlocked;
    const Stream* const stream = after ? &*after : nullptr;
    bool filled = false;
    group->use([&](ProcessBoard& board) {
      filled = fill_ranks(engine->device(), board, facts, std::move(blocks),
                          {.after = stream, .profile = profile()});
    });
    if (filled) {
      shipment->offsets = std::move(layout.offsets);
    } else if (!shipment->nest.leaves().empty()) {
      engine->enqueue(*shipment, {.after = stream});
    }
  }
  return engine->finish(std::move(*shipment));
}

}  // namespace penstock::python
