// Command line of the trainer.
#ifndef MPI_CPP_FLAGS_H_
#define MPI_CPP_FLAGS_H_

#include <string>

enum class Bug { kNone, kActivationScale, kSkipAllreduce, kLearningRate };

struct Flags {
  std::string run = "mpi";
  std::string collector;  // empty: STATAGENT_COLLECTOR, else 127.0.0.1:7433
  std::string if_exists;  // empty: STATAGENT_IF_EXISTS, else "error"
  int steps = 60;
  Bug bug = Bug::kNone;
  int bug_step = 3;
  bool agent = true;
  bool help = false;
};

// False: *error says what is wrong.
bool ParseFlags(int argc, char** argv, Flags* flags, std::string* error);
const char* Usage();

#endif  // MPI_CPP_FLAGS_H_
