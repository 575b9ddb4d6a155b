#pragma once

#include <cstdint>

/// The structures of DLPack 1 (github.com/dmlc/dlpack), in which libraries exchange tensors; in our words.
namespace penstock::python::dlpack {

enum DeviceType : std::int32_t { kCpu = 1, kCuda = 2, kCudaHost = 3, kCudaManaged = 13 };

enum TypeCode : std::uint8_t {
  kInt = 0,
  kUInt = 1,
  kFloat = 2,
  kOpaque = 3,
  kBfloat = 4,
  kComplex = 5,
  kBool = 6,
  kFloat8 = 7,  ///< the first of several
};

struct Device {
  std::int32_t type = kCpu;
  std::int32_t index = 0;
};

struct DataType {
  std::uint8_t code = kUInt;
  std::uint8_t bits = 8;
  std::uint16_t lanes = 1;

  friend bool operator==(const DataType&, const DataType&) = default;
};

struct Tensor {
  void* data = nullptr;
  Device device;
  std::int32_t ndim = 0;
  DataType dtype;
  std::int64_t* shape = nullptr;
  std::int64_t* strides = nullptr;  ///< in elements; null: row-major
  std::uint64_t byte_offset = 0;
};

/// The content of a capsule without a version.
struct ManagedTensor {
  static constexpr const char* kCapsule = "dltensor";
  Tensor tensor;
  void* context = nullptr;
  void (*deleter)(ManagedTensor*) = nullptr;
};

struct Version {
  std::uint32_t major = 1;
  std::uint32_t minor = 1;
};

struct ManagedTensorVersioned {
  static constexpr const char* kCapsule = "dltensor_versioned";
  Version version;
  void* context = nullptr;
  void (*deleter)(ManagedTensorVersioned*) = nullptr;
  std::uint64_t flags = 0;
  Tensor tensor;
};

struct ExchangeHeader {
  Version version;
  ExchangeHeader* previous = nullptr;
};

/// The content of `type(x).__dlpack_c_exchange_api__`, a capsule named "dlpack_exchange_api": a framework's
/// own C functions, several times faster than its Python methods.
struct ExchangeApi {
  ExchangeHeader header;
  int (*allocate)(Tensor* prototype, ManagedTensorVersioned** out, void* error_context,
                  void (*set_error)(void* error_context, const char* kind, const char* message));
  int (*to_managed)(void* object, ManagedTensorVersioned** out);
  int (*from_managed)(ManagedTensorVersioned* tensor, void** out_object);
  int (*view)(void* object, Tensor* out);  ///< null if the framework has none
  int (*current_stream)(std::int32_t device_type, std::int32_t device_index, void** out_stream);
};

}  // namespace penstock::python::dlpack
