#include "doctor/read/trace_frames.hpp"

#include "doctor/read/python_files.hpp"
#include "doctor/timeline/call_sites.hpp"
#include "doctor/timeline/frame_names.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace penstock {

namespace {

/// Of Python's own library. Names that programs often have, such as test/ and profile.py, are not here.
constexpr std::string_view kPythons =
    "__future__.py _collections_abc.py _strptime.py _weakrefset.py abc.py annotationlib.py argparse.py "
    "ast.py asyncio/ base64.py bdb.py bisect.py bz2.py cProfile.py codecs.py codeop.py collections/ "
    "compression/ concurrent/ configparser.py contextlib.py contextvars.py copy.py copyreg.py csv.py "
    "ctypes/ dataclasses.py datetime.py decimal.py difflib.py dis.py email/ encodings/ enum.py "
    "fnmatch.py fractions.py functools.py genericpath.py getopt.py gettext.py glob.py graphlib.py "
    "gzip.py hashlib.py heapq.py hmac.py html/ http/ importlib/ inspect.py io.py ipaddress.py json/ "
    "keyword.py linecache.py locale.py logging/ lzma.py mimetypes.py multiprocessing/ ntpath.py "
    "numbers.py opcode.py operator.py optparse.py os.py pathlib.py pathlib/ pdb.py pickle.py pkgutil.py "
    "platform.py posixpath.py pprint.py queue.py random.py re/ reprlib.py runpy.py secrets.py "
    "selectors.py shelve.py shlex.py shutil.py signal.py site.py socket.py socketserver.py sqlite3/ "
    "sre_compile.py sre_constants.py sre_parse.py ssl.py stat.py string.py string/ struct.py "
    "subprocess.py sysconfig.py sysconfig/ tarfile.py tempfile.py textwrap.py threading.py timeit.py "
    "token.py tokenize.py tomllib/ traceback.py tracemalloc.py types.py typing.py unittest/ urllib/ "
    "uuid.py warnings.py weakref.py xml/ zipfile.py zipfile/ zipimport.py zoneinfo/";

/// Installed packages that run between a program and CUDA, but as above not those such as datasets/.
constexpr std::string_view kPackages =
    "PIL/ absl/ accelerate/ aiohttp/ albumentations/ apex/ av/ axolotl/ bitsandbytes/ boto3/ botocore/ "
    "catalyst/ click/ colossalai/ comet_ml/ composer/ cupy/ cv2/ decord/ deepspeed/ detectron2/ dgl/ "
    "diffusers/ einops/ fairscale/ fastai/ fastcore/ filelock/ fire/ flash_attn/ fsspec/ functorch/ "
    "fvcore/ gpytorch/ gymnasium/ h5py/ huggingface_hub/ hydra/ ignite/ imageio/ iopath/ joblib/ "
    "kornia/ liger_kernel/ lightning/ lightning_fabric/ lightning_utilities/ loguru/ megatron/ mlflow/ "
    "mmcv/ mmengine/ monai/ nemo/ neptune/ numba/ numpy/ nvidia/ omegaconf/ open_clip/ pandas/ peft/ "
    "penstock/ polars/ psutil/ pyarrow/ pydantic/ pyro/ pytorch_lightning/ pytorch_metric_learning/ "
    "ray/ requests/ rich/ s3fs/ safetensors/ scipy/ sentence_transformers/ skimage/ sklearn/ skorch/ "
    "speechbrain/ stable_baselines3/ tensorboard/ tensorboardX/ tensordict/ tensorflow/ timm/ "
    "tokenizers/ torch/ torch_geometric/ torch_scatter/ torch_sparse/ torchao/ torchaudio/ torchdata/ "
    "torchmetrics/ torchrec/ torchrl/ torchtext/ torchtune/ torchvision/ tqdm/ transformer_engine/ "
    "transformers/ triton/ trl/ typer/ typing_extensions.py ultralytics/ unsloth/ urllib3/ vllm/ wandb/ "
    "webdataset/ xformers/ yaml/ zarr/ zmq/";

std::unordered_set<std::string_view> words_of(std::string_view text) {
  std::unordered_set<std::string_view> words;
  while (!text.empty()) {
    const std::size_t length = std::min(text.find(' '), text.size());
    words.insert(text.substr(0, length));
    text.remove_prefix(std::min(length + 1, text.size()));
  }
  return words;
}

/// "train.py" of "train.py(12): main". Empty: it is a built-in function, or a module's call.
std::string_view file_of(std::string_view name) {
  const std::size_t end = name.find("): ");
  const std::size_t open = end == std::string_view::npos ? end : name.rfind('(', end);
  return open == std::string_view::npos ? std::string_view{} : name.substr(0, open);
}

/// With the folder that the profiler may have cut off.
std::string whole_path(std::string_view file) {
  static const std::unordered_set<std::string_view> pythons = words_of(kPythons);
  static const std::unordered_set<std::string_view> packages = words_of(kPackages);
  for (const std::string_view folder : {"site-packages/", "dist-packages/", "lib/python3"}) {
    if (file.starts_with(folder)) return fmt::format("/{}", file);
  }
  const std::size_t slash = file.find('/');
  const std::string_view head = slash == std::string_view::npos ? file : file.substr(0, slash + 1);
  if (pythons.contains(head)) return fmt::format("/lib/python3/{}", file);
  if (packages.contains(head)) return fmt::format("/site-packages/{}", file);
  return std::string(file);
}

/// A frame of a package, and that of the program around it.
struct EnclosedFrame {
  TimelineHostSpan frame;
  std::uint32_t own = kNoName;
};

/// Of open frames, keeps those that are around `span`.
void keep_around(std::vector<TimelineHostSpan>& open, const TimelineHostSpan& span) {
  while (!open.empty() && (open.back().thread != span.thread || open.back().time.end <= span.time.begin))
    open.pop_back();
}

/// Takes the frames of packages out that are within one of the program.
std::vector<EnclosedFrame> take_enclosed(Timeline& timeline, const std::set<std::uint32_t>& of_packages) {
  std::vector<EnclosedFrame> enclosed;
  std::vector<TimelineHostSpan> open;  // frames of the program around the span
  auto kept = timeline.host.begin();
  for (const TimelineHostSpan& span : timeline.host) {
    keep_around(open, span);
    if (span.kind == HostSpanKind::frame) {
      const bool in_package = of_packages.contains(span.name);
      if (in_package && !open.empty()) {
        enclosed.push_back({span, open.back().name});
        continue;
      }
      if (!in_package) open.push_back(span);
    }
    *kept++ = span;
  }
  timeline.host.erase(kept, timeline.host.end());
  return enclosed;
}

/// The program's function that makes all calls that are not a package's. kNoName: there are several.
std::uint32_t only_caller(const Timeline& timeline, const std::set<std::uint32_t>& of_packages) {
  std::uint32_t only = kNoName;
  for (const KnownCall& known : find_call_sites(timeline)) {
    const std::uint32_t frame = known.site.frame;
    if (frame == kNoName || frame == only || of_packages.contains(frame)) continue;
    if (only != kNoName) return kNoName;
    only = frame;
  }
  return only;
}

void place_package_frames(Timeline& timeline, const std::set<std::uint32_t>& of_packages) {
  const std::vector<EnclosedFrame> enclosed = take_enclosed(timeline, of_packages);
  const std::uint32_t own = only_caller(timeline, of_packages);
  if (own == kNoName) return;
  std::unordered_map<std::uint32_t, std::uint32_t> names;
  for (const EnclosedFrame& known : enclosed) {
    if (known.own != own) continue;
    const auto [name, added] =
        names.try_emplace(known.frame.name, static_cast<std::uint32_t>(timeline.names.size()));
    if (added)
      timeline.names.push_back(place_in_package(timeline.names[own], timeline.names[known.frame.name]));
    timeline.host.push_back(known.frame);
    timeline.host.back().name = name->second;
  }
  sort_timeline(timeline);
}

std::uint32_t caller_of(const Timeline& timeline, std::uint32_t frame) {
  const auto caller = timeline.callers.find(frame);
  return caller != timeline.callers.end() ? caller->second : kNoName;
}

/// A frame of a package has those callers that the program's own around it has.
template <typename IsOwn>
void name_callers(Timeline& timeline, IsOwn&& is_own) {
  FrameNames names(timeline);
  std::vector<TimelineHostSpan> open;  // frames of the program around the span
  for (TimelineHostSpan& span : timeline.host) {
    keep_around(open, span);
    if (span.kind != HostSpanKind::frame) continue;
    const bool own = is_own(span.name);
    const std::uint32_t around = open.empty() ? kNoName : open.back().name;
    const std::uint32_t caller = own ? around : caller_of(timeline, around);
    span.name = names.called_by(span.name, caller);
    if (own) open.push_back(span);
  }
}

}  // namespace

TraceFrame trace_frame(std::string_view name) {
  const std::string_view file = file_of(name);
  const std::string path = whole_path(file);
  if (recording::is_user_file(path)) return {true, name};
  const std::string_view in_package = recording::path_in_package(path);
  if (in_package.empty()) return {};
  return {false, name.substr(file.size() - in_package.size())};
}

void place_frames(Timeline& timeline, const std::set<std::uint32_t>& of_packages) {
  const auto first_placed = static_cast<std::uint32_t>(timeline.names.size());
  if (!of_packages.empty()) place_package_frames(timeline, of_packages);
  name_callers(timeline,
               [&](std::uint32_t name) { return name < first_placed && !of_packages.contains(name); });
}

std::string place_in_package(std::string_view own, std::string_view in_package) {
  return fmt::format("{}, in {}", own, in_package);
}

}  // namespace penstock
