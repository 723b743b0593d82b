#include "flags.h"

#include <charconv>
#include <cstring>
#include <map>

namespace {

const std::map<std::string, Bug> kBugs = {{"none", Bug::kNone},
                                          {"activation-scale", Bug::kActivationScale},
                                          {"skip-allreduce", Bug::kSkipAllreduce},
                                          {"learning-rate", Bug::kLearningRate}};

bool ParseCount(const std::string& text, int* value) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, *value);
  return error == std::errc() && stop == end && *value >= 0;
}

}  // namespace

bool ParseFlags(int argc, char** argv, Flags* flags, std::string* error) {
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--help" || flag == "-h") {
      flags->help = true;
      return true;
    }
    if (flag == "--no-agent") {
      flags->agent = false;
      continue;
    }
    if (i + 1 == argc) {
      *error = flag + ": unknown, or its value is missing";
      return false;
    }
    const std::string value = argv[++i];
    bool good = true;
    if (flag == "--run") {
      flags->run = value;
    } else if (flag == "--collector") {
      flags->collector = value;
    } else if (flag == "--if-exists") {
      flags->if_exists = value;
    } else if (flag == "--steps") {
      good = ParseCount(value, &flags->steps);
    } else if (flag == "--bug-step") {
      good = ParseCount(value, &flags->bug_step);
    } else if (flag == "--bug") {
      good = kBugs.contains(value);
      if (good) flags->bug = kBugs.at(value);
    } else {
      *error = flag + ": unknown";
      return false;
    }
    if (!good) {
      *error = flag + ": '" + value + "' is not understood";
      return false;
    }
  }
  return true;
}

const char* Usage() {
  return "mpi_trainer: a two-layer perceptron, data-parallel over MPI ranks, observed by "
         "statagent.\n"
         "  mpirun -np 2 mpi_trainer --run base\n"
         "\n"
         "  --run NAME            name of the run (mpi)\n"
         "  --collector ADDRESS   statcollectord's host:port (STATAGENT_COLLECTOR, else "
         "127.0.0.1:7433)\n"
         "  --if-exists POLICY    error, replace or append, if the run has data (error)\n"
         "  --steps N             training steps (60)\n"
         "  --bug NAME            a mistake to find: none, activation-scale, skip-allreduce, "
         "learning-rate "
         "(none)\n"
         "  --bug-step N          the step in which it begins (3)\n"
         "  --no-agent            train without observing anything\n"
         "  --help                this text\n";
}
