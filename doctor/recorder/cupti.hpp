#pragma once

#include <cstddef>
#include <cstdint>

/// CUPTI by dlopen. The declarations are our own, since NVIDIA's headers may not be redistributed. They are
/// those that CUPTI has kept since 11.1: functions, numbers, and the first members of records. What later
/// versions added stands behind them, and no record is read past what is declared here.
namespace penstock::recorder {

using CuptiResult = int;
inline constexpr CuptiResult kCuptiSuccess = 0;
inline constexpr CuptiResult kCuptiMultipleSubscribers = 39;

using CuptiSubscriber = void*;
using CuptiContext = void*;
using CuptiCallback = void (*)(void* data, int domain, std::uint32_t function, const void* details);
using CuptiBufferRequested = void (*)(std::uint8_t** buffer, std::size_t* bytes, std::size_t* most_records);
using CuptiBufferCompleted = void (*)(CuptiContext context, std::uint32_t stream, std::uint8_t* buffer,
                                      std::size_t bytes, std::size_t valid_bytes);

inline constexpr int kDriverDomain = 1;
inline constexpr int kRuntimeDomain = 2;

/// CUpti_CallbackData.
struct CuptiCallDetails {
  std::int32_t site;  ///< 0: the call begins; 1: it has returned
  const char* function_name;
  const void* parameters;
  void* result;
  const char* symbol_name;
  CuptiContext context;
  std::uint32_t context_number;
  std::uint64_t* shared;
  std::uint32_t correlation;
};
static_assert(offsetof(CuptiCallDetails, correlation) == 64);

/// What CuptiCallDetails::parameters point to, of cudaMemcpy and cudaMemcpyAsync; without the direction, also
/// of cuMemcpyHtoD and cuMemcpyHtoDAsync.
struct CuptiCopyParameters {
  void* destination;
  const void* source;
  std::size_t bytes;
  std::int32_t direction;
};
static_assert(offsetof(CuptiCopyParameters, direction) == 24);

enum CuptiActivity : std::int32_t {
  kActivityCopy = 1,
  kActivitySet = 2,
  kActivityDriver = 4,
  kActivityRuntime = 5,
  kActivityContext = 9,
  kActivityKernel = 10,  // those of several streams at once; kind 3 would make them run one after the other
  kActivityMarker = 12,
  kActivityPeerCopy = 22,
  kActivityStream = 37,
};

// All records are packed, and aligned to 8 bytes.
struct CuptiCopyRecord {
  std::int32_t activity;
  std::uint8_t copy_kind;
  std::uint8_t source_kind;
  std::uint8_t destination_kind;
  std::uint8_t flags;
  std::uint64_t bytes;
  std::uint64_t begin;
  std::uint64_t end;
  std::uint32_t device;
  std::uint32_t context;
  std::uint32_t stream;
  std::uint32_t correlation;  ///< of copies between devices it is elsewhere
};
static_assert(sizeof(CuptiCopyRecord) == 48);

struct CuptiSetRecord {
  std::int32_t activity;
  std::uint32_t value;
  std::uint64_t bytes;
  std::uint64_t begin;
  std::uint64_t end;
  std::uint32_t device;
  std::uint32_t context;
  std::uint32_t stream;
  std::uint32_t correlation;
};
static_assert(sizeof(CuptiSetRecord) == 48);

struct CuptiKernelRecord {
  std::int32_t activity;
  std::uint8_t cache[12];
  std::uint64_t begin;
  std::uint64_t end;
  std::uint64_t completed;
  std::uint32_t device;
  std::uint32_t context;
  std::uint32_t stream;
  std::int32_t grid[3];
  std::int32_t block[3];
  std::uint8_t unused[16];
  std::uint32_t correlation;
  std::int64_t grid_number;
  const char* name;
};
static_assert(offsetof(CuptiKernelRecord, device) == 40 && offsetof(CuptiKernelRecord, correlation) == 92 &&
              offsetof(CuptiKernelRecord, name) == 104);

struct CuptiCallRecord {
  std::int32_t activity;
  std::uint32_t function;
  std::uint64_t begin;
  std::uint64_t end;
  std::uint32_t process;
  std::uint32_t thread;
  std::uint32_t correlation;
  std::uint32_t result;
};
static_assert(sizeof(CuptiCallRecord) == 40);

inline constexpr std::uint32_t kMarkerBegins = 2;
inline constexpr std::uint32_t kMarkerEnds = 4;

/// The beginning or the end of a range of NVTX.
struct CuptiMarkerRecord {
  std::int32_t activity;
  std::uint32_t flags;
  std::uint64_t time;
  std::uint32_t range;  ///< its number
  std::uint32_t object_kind;
  std::uint32_t process;
  std::uint32_t thread;
  std::uint8_t unused[8];
  const char* name;    ///< null at the end
  const char* domain;  ///< null: the program's own
};
static_assert(offsetof(CuptiMarkerRecord, name) == 40 && sizeof(CuptiMarkerRecord) == 56);

/// A context that was made. Later versions have more members.
struct CuptiContextRecord {
  std::int32_t activity;
  std::uint32_t context;
  std::uint32_t device;
  std::uint16_t interface;
  std::uint16_t default_stream;  ///< the number of its default stream
};
static_assert(sizeof(CuptiContextRecord) == 16);

/// A stream that was made. Each context has some from the beginning.
struct CuptiStreamRecord {
  std::int32_t activity;
  std::uint32_t context;
  std::uint32_t stream;
  std::uint32_t priority;
  std::uint32_t kind;
  std::uint32_t correlation;
};
static_assert(sizeof(CuptiStreamRecord) == 24);

/// Null members: this CUPTI lacks them. All of those without a comment are there.
struct Cupti {
  CuptiResult (*get_version)(std::uint32_t*);
  CuptiResult (*get_timestamp)(std::uint64_t*);
  CuptiResult (*subscribe)(CuptiSubscriber*, CuptiCallback, void*);
  CuptiResult (*unsubscribe)(CuptiSubscriber);
  CuptiResult (*enable_callback)(std::uint32_t on, CuptiSubscriber, int domain, std::uint32_t function);
  CuptiResult (*callback_name)(int domain, std::uint32_t function, const char**);
  CuptiResult (*register_callbacks)(CuptiBufferRequested, CuptiBufferCompleted);
  CuptiResult (*enable)(std::int32_t activity);
  CuptiResult (*disable)(std::int32_t activity);
  CuptiResult (*next_record)(std::uint8_t* buffer, std::size_t valid_bytes, const void** record);
  CuptiResult (*dropped)(CuptiContext, std::uint32_t stream, std::size_t*);
  CuptiResult (*flush_all)(std::uint32_t flag);
  CuptiResult (*enable_driver_call)(std::uint32_t function, std::uint8_t on);   ///< may be null: before 12.8
  CuptiResult (*enable_runtime_call)(std::uint32_t function, std::uint8_t on);  ///< may be null: before 12.8
  CuptiResult (*start_nvtx)(void* functions);                                   ///< may be null
  CuptiResult (*thread_id_type)(int*);                                          ///< may be null: before 12.1
};

/// Opens the CUPTI that the process has, the one that its CUDA runtime came with, or the system's. It stays
/// open. `why` says in a sentence what is wrong if there is none.
[[nodiscard]] bool open_cupti(Cupti& cupti, const char*& why) noexcept;

}  // namespace penstock::recorder
