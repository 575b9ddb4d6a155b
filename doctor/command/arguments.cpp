#include "cli/shared/arguments.hpp"

#include "doctor/command/doctor_command.hpp"

namespace penstock::cli {

void add_doctor(CLI::App& app, DoctorOptions& options) {
  CLI::App* command = app.add_subcommand(
      "doctor", "Say where a training loop loses time to its data, or what limits a PyTorch DataLoader");
  CLI::Option* trace =
      command
          ->add_option("TRACE", options.traces,
                       "Trace that PyTorch's profiler exported: .json or .json.gz; several are compared as "
                       "those of ranks; or a folder that --record made")
          ->type_name("FILE")
          ->check(not_empty());
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
                                   options.process = parse_count("--process", text, 0, kMostCount);
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
      ->check(not_empty())
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
