#pragma once

#include <penstock/device/backend.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <variant>

namespace penstock {

class HostEvent;
class Wire;
struct EventMark;

/// The modelled wires that the bytes of one copy take, all at once; null if there are fewer. The caller
/// keeps the memory at both ends, and so the devices that own the wires.
using Wires = std::array<Wire*, 2>;

struct CopyWork {
  void* destination;
  const void* source;
  std::size_t bytes;
  CopyDirection direction;
  Wires wires;
  std::byte* staged;  ///< `source` if the bytes were copied at the call, otherwise null; freed when done
};

struct FillWork {
  void* destination;
  std::size_t bytes;
  std::uint8_t value;
};

struct PiecesWork {
  const CopyPiece* pieces;
  std::size_t count;
};

struct GatherWork {
  GatherRequest request;
  bool head_on_link;    ///< the head's rows come over the link, from locked host memory
  bool source_on_link;  ///< the source's rows do
};

struct SplitWork {
  SplitRequest request;
  bool rows_on_link;  ///< the rows come over the link, from locked host memory
};

struct OrderWork {
  OrderRequest request;
};

struct HashWork {
  HashRequest request;
};

/// Completes `mark`, and releases `event`.
struct RecordWork {
  HostEvent* event;
  EventMark* mark;
};

/// Waits until `mark` has seen `ticket`, then releases `event`.
struct WaitEventWork {
  HostEvent* event;
  EventMark* mark;
  std::uint64_t ticket;
};

struct WaitValueWork {
  const std::uint32_t* word;
  std::uint32_t value;
};

struct OccupyWork {
  std::chrono::nanoseconds time;
};

/// The last of a stream's work: its thread ends.
struct EndWork {};

using Work = std::variant<EndWork, CopyWork, FillWork, PiecesWork, GatherWork, SplitWork, OrderWork, HashWork,
                          RecordWork, WaitEventWork, WaitValueWork, OccupyWork>;

}  // namespace penstock
