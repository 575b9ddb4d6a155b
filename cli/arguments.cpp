#include "arguments.hpp"

#include <penstock/core/bytes.hpp>
#include <penstock/core/error.hpp>
#include <penstock/transfer/transfer_engine.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <limits>

namespace penstock::cli {

namespace {

constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
constexpr std::uint64_t kMostRanks = std::uint64_t{1} << 20;
constexpr std::uint64_t kMostWorkers = 1 << 16;
constexpr double kLongestMilliseconds = 1e6;

const CLI::Validator kNotEmpty([](const std::string& text) { return text.empty() ? "it is empty" : ""; }, "");

void add_what(CLI::App& command, FeedOptions& options) {
  add_sources(command, "SOURCES", options.sources,
              "Files (.npy, .npz, .safetensors, IDX, IDX.gz), whose arrays are the fields; a directory; or "
              "the name of a dataset");
  command.add_option("--split", options.split, "Part of a directory that holds several: train or test")
      ->type_name("NAME");
  add_repeatable(command, "--search", options.search, "DIR",
                 "Another directory in which names are looked up");
  add_bytes(command, "--load-limit", options.load_limit,
            "Read files up to this size into memory, and map larger ones (default: a quarter of the memory)");
  add_count(command, "--batch", options.batch, 1, kMost, "Samples in a batch", "256");
  add_count(command, "--epochs", options.epochs, 1, kMost, "Times through the dataset", "1");
  command.add_flag("--shuffle", options.shuffle, "Feed in another order each epoch");
  add_count(command, "--seed", options.seed, 0, std::numeric_limits<std::uint64_t>::max(),
            "Seed of the shuffle", "0");
  command.add_flag(
      "--drop-last", options.drop_last,
      "Leave out a last batch that is not full, and samples that do not fill a step of all ranks");
  add_count(command, "--rank", options.rank, 0, kMost, "This process's part of each epoch, counted from 0",
            "0");
  add_count(command, "--world-size", options.world_size, 1, kMostRanks, "Processes that share each epoch",
            "1");
}

CLI::Option* add_residency(CLI::App& command, std::string& residency, const char* parts) {
  return command.add_option("--residency", residency, fmt::format("Part kept in device memory: {}", parts))
      ->type_name("PART");
}

CLI::Option* add_gather(CLI::App& command, std::string& gather) {
  return command
      .add_option("--gather", gather, "How samples are gathered: automatic, host, zero-copy or copy-engine")
      ->type_name("PATH");
}

void add_how(CLI::App& command, FeedOptions& options) {
  add_device(command, options.device);
  add_repeatable(
      command, "--to", options.to, "[FIELD=]TYPE",
      "Type to deliver, such as float32; without FIELD, for all fields that can widen to it, scalars aside");
  add_repeatable(command, "--scale", options.scale, "[FIELD=]X[,X...]",
                 "Deliver value * scale + shift; several numbers are one for each channel");
  add_repeatable(command, "--shift", options.shift, "[FIELD=]X[,X...]", "See --scale");
  add_residency(command, options.residency, "none, all, auto or a fraction such as 0.25");
  add_gather(command, options.gather);
  add_count(command, "--prefetch", options.prefetch, 1, 64, "Batches that run ahead", "2");
  add_count(command, "--threads", options.threads, 1, TransferOptions::kMostThreads,
            "Host threads that gather", "as processors allow");
  add_bytes(command, "--budget", options.budget,
            "Most device memory to take (default: half of the free memory)");
  add_bytes(command, "--row-budget", options.row_budget,
            "Most locked host memory for small fields in rows (default: an eighth of the memory)");
  add_off_flag(command, "--no-narrow", options.narrow, "Send integers in the type they are stored in");
}

void add_account(CLI::App& command, FeedOptions& options) {
  command.add_flag("--verify", options.verify, "Compare every delivered byte with the dataset");
  add_time(
      command, "--step-ms", "milliseconds", 0, kLongestMilliseconds,
      [&options](double number) { options.step_ms = number; },
      "Occupy the device for X milliseconds per batch, in place of a model");
  add_file(command, "--report", options.report, "Write a page with pictures to FILE");
  add_json(command, options.json, "the account");
  add_file(command, "--profile", options.profile, "Link profile in place of the stored one");
  command.add_flag("--ascii", options.ascii, "Draw with ASCII only");
}

}  // namespace

std::uint64_t parse_count(const char* option, const std::string& text, std::uint64_t least,
                          std::uint64_t most) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  if (whole && number >= least && number <= most) return number;
  const bool large = error == std::errc::result_out_of_range || (whole && number > most);
  throw CLI::ValidationError(
      option, large && most >= kUnlimited ? fmt::format("{} is too large; use at most {}", text, most)
              : most >= kUnlimited
                  ? fmt::format("'{}' is not a whole number of {} or more", text, least)
                  : fmt::format("'{}' is not a whole number from {} to {}", text, least, most));
}

CLI::Option* add_off_flag(CLI::App& command, const char* name, bool& value, const std::string& description) {
  return command.add_flag_callback(name, [&value] { value = false; }, description);
}

CLI::Option* add_time(CLI::App& command, const char* name, const std::string& unit, double least, double most,
                      const std::function<void(double)>& take, const std::string& description) {
  return command
      .add_option_function<std::string>(
          name,
          [=](const std::string& text) {
            double number = 0;
            const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
            const bool whole = error == std::errc() && end == text.data() + text.size();
            if (!whole || !(number >= least && number <= most)) {
              throw CLI::ValidationError(
                  name, fmt::format("'{}' is not a time from {} to {} {}", text, least, most, unit));
            }
            take(number);
          },
          description)
      ->type_name("X");
}

CLI::Option* add_bytes(CLI::App& command, const char* name, std::size_t& bytes,
                       const std::string& description) {
  return command
      .add_option_function<std::string>(
          name,
          [&bytes, name](const std::string& text) {
            try {
              bytes = parse_bytes(text);
            } catch (const InvalidArgument& error) {
              throw CLI::ValidationError(name, error.what());
            }
          },
          description)
      ->type_name("SIZE");
}

CLI::Option* add_choice(CLI::App& command, const char* name, std::string& choice, const std::string& type,
                        const std::vector<std::string>& choices, const std::string& description) {
  const std::string listed =
      fmt::format("{} or {}", fmt::join(choices.begin(), std::prev(choices.end()), ", "), choices.back());
  const auto known = [choices, listed](const std::string& text) {
    return std::find(choices.begin(), choices.end(), text) != choices.end()
               ? std::string()
               : fmt::format("'{}' is unknown; use {}", text, listed);
  };
  return command.add_option(name, choice, fmt::format("{}: {}", description, listed))
      ->type_name(type)
      ->check(known, "");
}

CLI::Option* add_repeatable(CLI::App& command, const std::string& name, std::vector<std::string>& values,
                            const std::string& type, const std::string& description) {
  return command.add_option(name, values, description)
      ->type_name(type)
      ->allow_extra_args(false)
      ->check(kNotEmpty);
}

CLI::Option* add_file(CLI::App& command, const char* name, std::string& file,
                      const std::string& description) {
  return command.add_option(name, file, description)->type_name("FILE")->check(kNotEmpty);
}

void add_sources(CLI::App& command, const char* name, std::vector<std::string>& sources,
                 const std::string& description) {
  command.add_option(name, sources, description)->required()->type_name("")->check(kNotEmpty);
}

void add_json(CLI::App& command, std::string& file, const std::string& description) {
  add_file(command, "--json", file,
           fmt::format("Write {} as JSON to FILE; - is standard output, with nothing else", description));
}

CLI::Option* add_device(CLI::App& command, std::string& device) {
  return command.add_option("--device", device, "cuda:N, host, host:N, host:N,key=value,..., or auto")
      ->type_name("SPEC");
}

void add_feed(CLI::App& app, FeedOptions& options) {
  CLI::App* command = app.add_subcommand("feed", "Feed a dataset to a device, and say where the time went");
  add_what(*command, options);
  add_how(*command, options);
  add_account(*command, options);
  command->footer(
      "Examples:\n"
      "  penstock feed images.npy labels.npy --shuffle --epochs 3\n"
      "  penstock feed set.npz --batch 512 --step-ms 12\n"
      "      would it keep up with a step of 12 ms?\n"
      "  penstock feed images.npy --to float32 --verify --report report.html\n"
      "  penstock feed images.npy --rank 0 --world-size 8\n"
      "      what one of eight processes gets\n"
      "  penstock feed fashion-mnist --json -\n"
      "      a dataset by its name, for programs");
}

namespace {

/// The loader that a feed wraps: its rate, or the seconds of its stages.
void add_other_loader(CLI::App& command, CLI::Option* samples, PredictOptions& options) {
  const auto add = [&](const char* name, auto& milliseconds, const char* description) {
    return add_time(
        command, name, "milliseconds", 0, kLongestMilliseconds,
        [&milliseconds](double number) { milliseconds = number; }, description);
  };
  CLI::Option* rate =
      add("--loader-ms", options.loader_ms,
          "The milliseconds that another loader and its workers take for a batch, as measured")
          ->needs(samples);
  CLI::Option* fetch = add("--fetch-ms", options.fetch_ms,
                           "In place of --loader-ms: the milliseconds in which one process makes the samples "
                           "of a batch, such as a worker of a DataLoader")
                           ->needs(samples)
                           ->excludes(rate);
  add("--collate-ms", options.collate_ms, "The milliseconds in which it makes the batch of them")
      ->needs(fetch);
  add("--waiting-ms", options.waiting_ms,
      "Of both, the milliseconds in which it waits for a disk or a network, and needs no processor")
      ->needs(fetch);
  add("--receive-ms", options.receive_ms,
      "The milliseconds in which the calling process takes a batch from a worker")
      ->needs(fetch);
  add_count(command, "--workers", options.workers, 0, kMostWorkers, "Processes that make the batches", "0")
      ->needs(fetch);
  add_count(command, "--processors", options.processors, 1, kMostWorkers,
            "Processors that the workers and the calling process share", "those of this machine")
      ->needs(fetch);
}

}  // namespace

void add_predict(CLI::App& app, PredictOptions& options) {
  CLI::App* command = app.add_subcommand(
      "predict", "Print the time that a transfer will take, or the time of a batch that is fed");
  CLI::Option* bytes = add_bytes(*command, "BYTES", options.bytes, "Bytes in all, such as 64MiB");
  CLI::Option* samples = add_bytes(*command, "--samples", options.sample_bytes,
                                   "In place of BYTES: a feed of samples of SIZE, as they are stored")
                             ->excludes(bytes);
  add_device(*command, options.device);
  const auto of_transfer = [&](CLI::Option* option) { option->excludes(samples); };
  const auto of_feed = [&](CLI::Option* option) { option->needs(samples); };
  of_transfer(add_count(*command, "--pieces", options.pieces, 1, std::uint64_t{1} << 40,
                        "Number of equal pieces", "1"));
  command
      ->add_option("--from", options.from,
                   "Kind of the source's memory: pageable, pinned, registered or device; of a feed, the type "
                   "of stored values, such as uint8")
      ->type_name("KIND|TYPE");
  command
      ->add_option("--to", options.to,
                   "Kind of the destination's memory; of a feed, the type to deliver, such as float32")
      ->type_name("KIND|TYPE");
  of_transfer(add_choice(*command, "--path", options.path, "PATH",
                         {"automatic", "direct", "staged", "packed"}, "Path of the transfer"));
  of_feed(add_count(*command, "--batch", options.batch, 1, kMost, "Samples in a batch", "256"));
  of_feed(command->add_flag("--shuffle", options.shuffle, "Samples of a batch lie apart"));
  of_feed(add_time(
      *command, "--step-ms", "milliseconds", 0, kLongestMilliseconds,
      [&options](double number) { options.step_ms = number; }, "The milliseconds of your step for a batch"));
  add_other_loader(*command, samples, options);
  of_feed(add_residency(*command, options.residency, "none, all or a fraction such as 0.25"));
  of_feed(add_gather(*command, options.gather));
  of_feed(add_count(*command, "--prefetch", options.prefetch, 1, 64, "Batches that run ahead", "2"));
  of_feed(add_count(*command, "--threads", options.threads, 1, TransferOptions::kMostThreads,
                    "Host threads that gather", "as many as were measured"));
  add_file(*command, "--profile", options.profile, "Link profile in place of the stored one");
  add_json(*command, options.json, "the same");
  command->callback([bytes, samples] {
    if (bytes->count() + samples->count() == 0) throw CLI::RequiredError("BYTES or --samples");
  });
  command->footer(
      "Examples:\n"
      "  penstock predict 64MiB\n"
      "  penstock predict 4MB --pieces 1000 --from pinned\n"
      "  penstock predict 1GiB --from device --to pageable --json -\n"
      "  penstock predict --samples 147KiB --batch 256 --shuffle --step-ms 5 --to float32\n"
      "  penstock predict --samples 1KiB --batch 4096 --shuffle --residency 0.5 --gather zero-copy\n"
      "  penstock predict --samples 147KiB --step-ms 5 --fetch-ms 80 --collate-ms 10 --workers 4");
}

void add_doctor(CLI::App& app, DoctorOptions& options) {
  CLI::App* command = app.add_subcommand(
      "doctor", "Say where a training loop loses time to its data, or what limits a PyTorch DataLoader");
  CLI::Option* trace =
      command
          ->add_option("TRACE", options.traces,
                       "Trace that PyTorch's profiler exported: .json or .json.gz; several are compared as "
                       "those of ranks; or a folder that --record made")
          ->type_name("FILE")
          ->check(kNotEmpty);
  CLI::Option* budget =
      add_file(*command, "--budget", options.budget, "What must hold; if it does not, the exit status is 3");
  CLI::Option* profile =
      add_file(*command, "--profile", options.profile,
               "Link profile of the machine that was recorded; for a program, in place of the stored one");
  CLI::Option* html = add_file(*command, "--html", options.html,
                               "Write a page with the findings, a timeline and the link's curve to FILE");
  CLI::Option* perfetto = add_file(
      *command, "--perfetto", options.perfetto,
      "Write what was recorded and found to FILE, for ui.perfetto.dev; a name that ends in .gz packs it");
  CLI::Option* process = command
                             ->add_option_function<std::string>(
                                 "--process",
                                 [&options](const std::string& text) {
                                   options.process = parse_count("--process", text, 0, kMost);
                                 },
                                 "Of a folder with several processes, draw the one that has the number N in "
                                 "the report, in place of "
                                 "the first")
                             ->type_name("N");
  CLI::Option* loader = command
                            ->add_option("--loader", options.loader,
                                         "In place of a trace: Python file, and in it a DataLoader or a "
                                         "function without arguments that returns one")
                            ->type_name("FILE.py:NAME")
                            ->excludes(trace, budget, profile, html, perfetto, process);
  constexpr double kShortest = 0.01;
  constexpr double kLongest = 3600;
  add_time(
      *command, "--seconds", "seconds", kShortest, kLongest,
      [&options](double number) { options.seconds = number; },
      "Time of each run: two to six, and one for each number of workers (default: 2)")
      ->needs(loader);
  add_time(
      *command, "--step", "milliseconds", 0, kLongestMilliseconds,
      [&options](double number) { options.step_ms = number; },
      "The milliseconds that training takes for a batch, without the loader")
      ->needs(loader);
  CLI::Option* record =
      add_file(*command, "--record", options.record, "Folder to keep the recordings of a program in")
          ->type_name("FOLDER")
          ->excludes(trace, loader);
  command->add_flag("--no-lines", options.no_lines, "Record a program faster, without the lines of its calls")
      ->excludes(trace, loader);
  command
      ->add_flag(
          "--no-contents", options.no_contents,
          "Record a program faster, without looking for the same data sent again and for widened values")
      ->excludes(trace, loader);
  command
      ->add_option("--verify", options.verify,
                   "Line of a shell that runs the changed program: compare what it gains with what was "
                   "predicted")
      ->type_name("LINE")
      ->check(kNotEmpty)
      ->excludes(trace, loader, budget, record);
  add_json(*command, options.json, "the verdict");
  command->footer(
      "Examples:\n"
      "  penstock doctor -- python train.py --epochs 1\n"
      "      any CUDA program, as it is\n"
      "  penstock doctor --record run -- torchrun train.py\n"
      "  penstock doctor --verify 'python fixed.py' -- python train.py\n"
      "      what did the change gain?\n"
      "  penstock doctor trace.json.gz\n"
      "  penstock doctor rank0.json rank1.json\n"
      "      who keeps the others waiting?\n"
      "  penstock doctor trace.json --html report.html --perfetto found.json.gz\n"
      "  penstock doctor trace.json --budget budget.txt --json -\n"
      "      in continuous integration\n"
      "  penstock doctor --loader train.py:loader\n"
      "  penstock doctor --loader train.py:make_loader --step 12\n"
      "      does it keep up with a step of 12 ms?\n"
      "--loader runs the Python that this command was installed into, or else the python3 of the PATH. It "
      "needs\n"
      "PyTorch and the penstock package.");
}

}  // namespace penstock::cli
