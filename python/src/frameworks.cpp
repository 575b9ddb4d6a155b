#include "frameworks.hpp"

#include <penstock/core/error.hpp>

#include <nanobind/ndarray.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace penstock::python {
namespace {

bool exchange_api_wanted = true;

// Keeps the object alive until the process ends. Types and functions of modules live as long anyway.
PyObject* keep(nb::object object) { return object.release().ptr(); }

nb::object imported(const char* name) {
  PyObject* modules = PyImport_GetModuleDict();  // borrowed
  PyObject* module = modules == nullptr ? nullptr : PyDict_GetItemString(modules, name);
  return nb::borrow(module == nullptr || module == Py_None ? nullptr : module);
}

// True if the elements lie side by side in some order of the axes: bytes and strides can be kept.
bool is_dense(const Leaf& leaf, std::int64_t elements) {
  const std::int32_t ndim = leaf.ndim();
  std::int64_t expected = 1;
  bool row_major = true;
  for (std::int32_t axis = ndim - 1; axis >= 0 && row_major; --axis) {
    if (leaf.shape()[axis] == 1) continue;
    row_major = leaf.strides()[axis] == expected;
    expected *= leaf.shape()[axis];
  }
  if (row_major || elements <= 1) return true;
  std::vector<std::pair<std::int64_t, std::int64_t>> axes;
  for (std::int32_t axis = 0; axis < ndim; ++axis) {
    if (leaf.shape()[axis] != 1) axes.emplace_back(leaf.strides()[axis], leaf.shape()[axis]);
  }
  std::sort(axes.begin(), axes.end());
  expected = 1;
  for (const auto& [stride, extent] : axes) {
    if (stride != expected) return false;
    expected *= extent;
  }
  return true;
}

std::optional<dlpack::DataType> parse_format(std::string_view format, std::size_t item_bytes) {
  if (format.starts_with('@') || format.starts_with('=') || format.starts_with('<')) format.remove_prefix(1);
  const auto bits = static_cast<std::uint8_t>(8 * item_bytes);
  if (format == "?") return dlpack::DataType{dlpack::kBool, 8, 1};
  if (format == "Zf" || format == "Zd") return dlpack::DataType{dlpack::kComplex, bits, 1};
  if (format.size() != 1) return std::nullopt;
  if (std::string_view("bhilq").find(format[0]) != std::string_view::npos)
    return dlpack::DataType{dlpack::kInt, bits, 1};
  if (std::string_view("BHILQ").find(format[0]) != std::string_view::npos)
    return dlpack::DataType{dlpack::kUInt, bits, 1};
  if (std::string_view("efd").find(format[0]) != std::string_view::npos)
    return dlpack::DataType{dlpack::kFloat, bits, 1};
  return std::nullopt;
}

struct DTypeName {
  DType dtype;
  dlpack::DataType dlpack;
};

constexpr std::array<DTypeName, 13> kDTypes{{
    {DType::boolean, {dlpack::kBool, 8, 1}},
    {DType::uint8, {dlpack::kUInt, 8, 1}},
    {DType::int8, {dlpack::kInt, 8, 1}},
    {DType::uint16, {dlpack::kUInt, 16, 1}},
    {DType::int16, {dlpack::kInt, 16, 1}},
    {DType::uint32, {dlpack::kUInt, 32, 1}},
    {DType::int32, {dlpack::kInt, 32, 1}},
    {DType::uint64, {dlpack::kUInt, 64, 1}},
    {DType::int64, {dlpack::kInt, 64, 1}},
    {DType::float16, {dlpack::kFloat, 16, 1}},
    {DType::bfloat16, {dlpack::kBfloat, 16, 1}},
    {DType::float32, {dlpack::kFloat, 32, 1}},
    {DType::float64, {dlpack::kFloat, 64, 1}},
}};

bool requires_grad(PyObject* tensor) {
  static PyObject* const name = PyUnicode_InternFromString("requires_grad");
  PyObject* value = PyObject_GetAttr(tensor, name);
  if (value == nullptr) throw nb::python_error();
  Py_DECREF(value);
  return value == Py_True;
}

// Types of one byte that DLPack counts from kFloat8 on, by the names that PyTorch and ml_dtypes give them.
constexpr std::array<const char*, 8> kFloat8Names{
    "float8_e3m4",     "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn",
    "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",    "float8_e8m0fnu",
};

bool is_float8(const dlpack::DataType& dtype) {
  return dtype.bits == 8 && dtype.code >= dlpack::kFloat8 &&
         dtype.code < dlpack::kFloat8 + kFloat8Names.size();
}

std::string name_of(const dlpack::DataType& dtype) {
  const char* names[] = {"int", "uint", "float", "opaque", "bfloat", "complex"};
  if (dtype.code == dlpack::kBool) return "bool";
  if (is_float8(dtype)) return kFloat8Names[dtype.code - dlpack::kFloat8];
  return std::string(dtype.code < 6 ? names[dtype.code] : "code" + std::to_string(dtype.code) + "_") +
         std::to_string(dtype.bits);
}

// What NumPy has of ml_dtypes only.
std::optional<dlpack::DataType> parse_ml_dtype(std::string_view name) {
  if (name == "bfloat16") return dlpack::DataType{dlpack::kBfloat, 16, 1};
  const auto found = std::find(kFloat8Names.begin(), kFloat8Names.end(), name);
  if (found == kFloat8Names.end()) return std::nullopt;
  return dlpack::DataType{static_cast<std::uint8_t>(dlpack::kFloat8 + (found - kFloat8Names.begin())), 8, 1};
}

nb::object ml_dtype(const std::string& name) {
  try {
    return nb::module_::import_("ml_dtypes").attr(name.c_str());
  } catch (const nb::python_error&) {
    throw Unsupported("NumPy has no " + name + ": import torch, or install ml_dtypes.");
  }
}

bool call_is_true(PyObject* object, const char* method) {
  return nb::cast<bool>(nb::handle(object).attr(method)());
}

void raise_framework_error(void* /*context*/, const char* kind, const char* message) {
  PyErr_SetString(std::string_view(kind) == "MemoryError" ? PyExc_MemoryError : PyExc_RuntimeError, message);
}

// Runs `allocate`. If a framework is out of memory, raises an error that is both penstock's and PyTorch's.
template <typename Allocate>
auto with_out_of_memory(Allocate&& allocate) {
  try {
    return allocate();
  } catch (const nb::python_error& error) {
    const nb::object torchs =
        nb::getattr(nb::module_::import_("torch"), "OutOfMemoryError", nb::handle(PyExc_MemoryError));
    if (!error.matches(PyExc_MemoryError) && !error.matches(torchs)) throw;
    const nb::object ours =
        nb::module_::import_("penstock._errors").attr("allocator_out_of_memory")(error.value());
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(ours.ptr())), ours.ptr());
  }
  throw nb::python_error();
}

// PyTorch's types of less than eight bits take a byte each, and DLPack gives them the byte's name.
bool is_byte_type(PyObject* tensor, const dlpack::DataType& dtype) {
  static PyObject* const uint8 = keep(nb::module_::import_("torch").attr("uint8"));
  static PyObject* const int8 = keep(nb::module_::import_("torch").attr("int8"));
  static PyObject* const name = PyUnicode_InternFromString("dtype");
  const nb::object type = nb::steal(PyObject_GetAttr(tensor, name));
  if (!type.is_valid()) throw nb::python_error();
  return type.ptr() == (dtype.code == dlpack::kUInt ? uint8 : int8);
}

}  // namespace

std::string Leaf::dtype_name() const { return name_of(dtype); }

std::optional<DType> known_dtype(const dlpack::DataType& dtype) {
  for (const auto& known : kDTypes) {
    if (known.dlpack == dtype) return known.dtype;
  }
  return std::nullopt;
}

dlpack::DataType dlpack_of(DType dtype) {
  for (const auto& known : kDTypes) {
    if (known.dtype == dtype) return known.dlpack;
  }
  throw InvalidArgument("A dtype without a name in DLPack.");
}

Leaf describe(DType dtype, const std::vector<std::size_t>& shape) {
  Leaf leaf;
  leaf.bytes = dtype_bytes(dtype) * element_count(shape);
  leaf.dtype = dlpack_of(dtype);
  const std::size_t axes = shape.size();
  leaf.dims.resize(2 * axes);
  std::int64_t elements = 1;
  for (std::size_t axis = axes; axis-- > 0;) {
    const auto extent = static_cast<std::int64_t>(shape[axis]);
    leaf.dims[axis] = extent;
    leaf.dims[axes + axis] = elements;
    elements *= std::max<std::int64_t>(extent, 1);
  }
  return leaf;
}

nb::object make_on_host(const Leaf& leaf, std::shared_ptr<Storage> storage, std::byte* at, bool for_torch) {
  const TensorView view = leaf.view(std::move(storage), at, {});
  return for_torch ? Torch::get()->make(view) : NumPy::get()->make(view);
}

nb::tuple shape_of(const Leaf& leaf) {
  nb::list shape;
  for (std::int32_t axis = 0; axis < leaf.ndim(); ++axis) shape.append(leaf.shape()[axis]);
  return nb::tuple(shape);
}

bool fill_leaf(Leaf& leaf, const dlpack::Tensor& tensor) {
  if (tensor.dtype.lanes != 1 || tensor.dtype.bits % 8 != 0) return false;
  const auto axes = static_cast<std::size_t>(tensor.ndim);
  leaf.dims.resize(2 * axes);
  std::int64_t elements = 1;
  for (std::size_t axis = axes; axis-- > 0;) {
    leaf.dims[axis] = tensor.shape[axis];
    leaf.dims[axes + axis] = tensor.strides == nullptr ? elements : tensor.strides[axis];
    elements *= tensor.shape[axis];
  }
  leaf.dtype = tensor.dtype;
  leaf.device = tensor.device;
  leaf.data = static_cast<const std::byte*>(tensor.data) + tensor.byte_offset;
  leaf.bytes = static_cast<std::size_t>(elements) * (tensor.dtype.bits / 8);
  return is_dense(leaf, elements);
}

void Torch::use_exchange_api(bool use) { exchange_api_wanted = use; }

Torch* Torch::get() {
  static Torch instance;
  return instance.tensor_type_ != nullptr || instance.refresh() ? &instance : nullptr;
}

bool Torch::refresh() {
  const nb::object module = imported("torch");
  // A module that is still being imported does not have Tensor.
  if (!module.is_valid() || !nb::hasattr(module, "Tensor") || !nb::hasattr(module, "utils")) return false;
  const nb::object type = module.attr("Tensor");
  if (nb::hasattr(type, "__dlpack_c_exchange_api__")) {
    const nb::object capsule = type.attr("__dlpack_c_exchange_api__");
    auto* header =
        static_cast<dlpack::ExchangeHeader*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
    if (header == nullptr) PyErr_Clear();
    while (header != nullptr && header->version.major != 1) header = header->previous;
    const auto* api = reinterpret_cast<const dlpack::ExchangeApi*>(header);
    if (api != nullptr && api->view != nullptr) api_ = api;
  }
  const nb::object functions = nb::module_::import_("torch.utils.dlpack");
  to_dlpack_ = keep(functions.attr("to_dlpack"));
  from_dlpack_ = keep(functions.attr("from_dlpack"));
  tensor_type_ = keep(type);
  return true;
}

bool Torch::read(Leaf& leaf, PyObject* tensor) {
  if (requires_grad(tensor)) return false;
  dlpack::Tensor described;
  leaf.framework = Framework::torch;
  leaf.source = nb::borrow(tensor);
  if (api_ != nullptr && exchange_api_wanted) {
    if (api_->view(tensor, &described) != 0) {
      PyErr_Clear();
      return false;
    }
    if (!fill_leaf(leaf, described)) return false;
  } else {
    PyObject* capsule = PyObject_CallFunctionObjArgs(to_dlpack_, tensor, nullptr);
    if (capsule == nullptr) {
      PyErr_Clear();
      return false;
    }
    const nb::object owner = nb::steal(capsule);
    const auto* managed = static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(capsule, "dltensor"));
    if (managed == nullptr) throw nb::python_error();
    if (!fill_leaf(leaf, managed->tensor)) return false;
  }
  const bool integer = leaf.dtype.code == dlpack::kInt || leaf.dtype.code == dlpack::kUInt;
  if (integer && leaf.dtype.bits == 8 && !is_byte_type(tensor, leaf.dtype)) return false;
  // A tensor's "conjugate" and "negate when read" bits are not part of its bytes. The negative bit comes from
  // the imaginary part of a conjugate, whose elements lie apart.
  if (leaf.dtype.code == dlpack::kComplex && call_is_true(tensor, "is_conj")) return false;
  return leaf.bytes > leaf.dtype.bits / 8 || !call_is_true(tensor, "is_neg");
}

void Torch::pin(Leaf& leaf) {
  if (leaf.framework != Framework::torch) return;
  PyObject* pinned = PyObject_CallMethod(leaf.source.ptr(), "pin_memory", nullptr);
  if (pinned == nullptr) {
    if (PyErr_ExceptionMatches(PyExc_Exception) == 0) throw nb::python_error();  // Ctrl-C
    PyErr_Clear();
    return;
  }
  Leaf copy;
  const nb::object owner = nb::steal(pinned);
  if (!read(copy, pinned) || copy.bytes != leaf.bytes) return;
  // Set here, whatever device PyTorch's DLPack states.
  copy.device = {dlpack::kCudaHost, 0};
  leaf = std::move(copy);
}

nb::object Torch::make(const TensorView& view) {
  if (is_float8(view.dtype) &&
      (api_ == nullptr || !exchange_api_wanted)) {  // older versions do not take them
    const char* const name = kFloat8Names[view.dtype.code - dlpack::kFloat8];
    const nb::object type = nb::getattr(nb::module_::import_("torch"), name, nb::none());
    if (type.is_none()) throw Unsupported(std::string("this PyTorch has no ") + name + ": convert it first.");
    TensorView bytes = view;
    bytes.dtype = {dlpack::kUInt, 8, 1};
    return make(bytes).attr("view")(type);
  }
  if (api_ != nullptr && exchange_api_wanted) {
    void* object = nullptr;
    if (api_->from_managed(make_managed(view), &object) != 0) throw nb::python_error();
    return nb::steal(static_cast<PyObject*>(object));
  }
  return nb::handle(from_dlpack_)(make_capsule(make_legacy_managed(view)));
}

std::shared_ptr<Storage> Torch::allocate(int device_index, std::size_t bytes) {
  return with_out_of_memory([&] { return allocate_or_raise(device_index, bytes); });
}

std::shared_ptr<Storage> Torch::allocate_or_raise(int device_index, std::size_t bytes) {
  auto extent = static_cast<std::int64_t>(bytes);
  dlpack::ManagedTensorVersioned* managed = nullptr;
  if (api_ != nullptr && exchange_api_wanted) {
    dlpack::Tensor prototype;
    prototype.device = {dlpack::kCuda, device_index};
    prototype.ndim = 1;
    prototype.shape = &extent;
    if (api_->allocate(&prototype, &managed, nullptr, raise_framework_error) != 0) throw nb::python_error();
    return std::make_shared<FrameworkStorage>(managed);
  }
  const nb::module_ torch = nb::module_::import_("torch");
  const nb::object tensor =
      torch.attr("empty")(extent, nb::arg("dtype") = torch.attr("uint8"),
                          nb::arg("device") = nb::str(("cuda:" + std::to_string(device_index)).c_str()));
  PyObject* capsule = PyObject_CallFunctionObjArgs(to_dlpack_, tensor.ptr(), nullptr);
  if (capsule == nullptr) throw nb::python_error();
  const nb::object owner = nb::steal(capsule);
  auto* legacy = static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(capsule, "dltensor"));
  if (legacy == nullptr) throw nb::python_error();
  PyCapsule_SetName(capsule, "used_dltensor");
  managed = new dlpack::ManagedTensorVersioned;
  managed->context = legacy;
  managed->tensor = legacy->tensor;
  managed->deleter = [](dlpack::ManagedTensorVersioned* self) {
    auto* inner = static_cast<dlpack::ManagedTensor*>(self->context);
    if (inner->deleter != nullptr) inner->deleter(inner);
    delete self;
  };
  return std::make_shared<FrameworkStorage>(managed);
}

StreamHandle Torch::current_stream(int device_index) {
  if (api_ != nullptr && exchange_api_wanted) {
    void* stream = nullptr;
    if (api_->current_stream(dlpack::kCuda, device_index, &stream) != 0) throw nb::python_error();
    return stream;
  }
  const nb::object stream = nb::module_::import_("torch").attr("cuda").attr("current_stream")(device_index);
  return reinterpret_cast<StreamHandle>(nb::cast<std::uintptr_t>(stream.attr("cuda_stream")));
}

NumPy* NumPy::get() {
  static NumPy instance;
  if (instance.array_type_ == nullptr) {
    const nb::object module = imported("numpy");
    if (!module.is_valid() || !nb::hasattr(module, "ndarray")) return nullptr;
    instance.array_type_ = keep(module.attr("ndarray"));
  }
  return &instance;
}

bool NumPy::read(Leaf& leaf, PyObject* array) {
  Py_buffer buffer;
  if (PyObject_GetBuffer(array, &buffer, PyBUF_STRIDES | PyBUF_FORMAT) != 0) {
    PyErr_Clear();
    return read_opaque(leaf, array);
  }
  const auto item_bytes = static_cast<std::size_t>(buffer.itemsize);
  const auto dtype = parse_format(buffer.format == nullptr ? "B" : buffer.format, item_bytes);
  bool described = dtype.has_value();
  if (described) {
    std::vector<std::int64_t> dims(2 * static_cast<std::size_t>(buffer.ndim));
    for (int axis = 0; axis < buffer.ndim; ++axis) {
      dims[axis] = buffer.shape[axis];
      described = described && (buffer.strides[axis] % buffer.itemsize == 0 || buffer.shape[axis] <= 1);
      dims[buffer.ndim + axis] = buffer.strides[axis] / buffer.itemsize;
    }
    leaf.framework = Framework::numpy;
    leaf.source = nb::borrow(array);
    const dlpack::Tensor tensor{
        buffer.buf, {dlpack::kCpu, 0}, buffer.ndim, *dtype, dims.data(), dims.data() + buffer.ndim, 0};
    described = described && fill_leaf(leaf, tensor);
  }
  PyBuffer_Release(&buffer);
  return described;
}

bool NumPy::read_opaque(Leaf& leaf, PyObject* array) {
  const nb::handle handle(array);
  const auto dtype = parse_ml_dtype(nb::cast<std::string>(handle.attr("dtype").attr("name")));
  if (!dtype) return false;
  const nb::object plain = handle.attr("view")(dtype->bits == 8 ? "u1" : "u2");
  if (!read(leaf, plain.ptr())) return false;
  leaf.source = nb::borrow(array);
  leaf.dtype = *dtype;
  return true;
}

nb::object NumPy::make(const TensorView& view) {
  auto* storage = new std::shared_ptr<Storage>(view.storage);
  const nb::capsule owner(storage,
                          [](void* self) noexcept { delete static_cast<std::shared_ptr<Storage>*>(self); });
  std::vector<std::size_t> shape(view.shape, view.shape + view.ndim);
  const bool opaque = view.dtype.code == dlpack::kBfloat || is_float8(view.dtype);
  nb::dlpack::dtype dtype;
  dtype.code = opaque ? std::uint8_t{dlpack::kUInt} : view.dtype.code;
  dtype.bits = view.dtype.bits;
  dtype.lanes = view.dtype.lanes;
  nb::ndarray<nb::numpy> array(view.data, shape.size(), shape.data(), owner, view.strides, dtype);
  return opaque ? array.cast().attr("view")(ml_dtype(name_of(view.dtype))) : array.cast();
}

bool read_exactly(Leaf& leaf, PyObject* array) {
  if (Torch* torch = Torch::get(); torch != nullptr && torch->is_tensor_exactly(array)) {
    return torch->read(leaf, array);
  }
  NumPy* const numpy = NumPy::get();
  return numpy != nullptr && numpy->is_array_exactly(array) && numpy->read(leaf, array);
}

}  // namespace penstock::python
