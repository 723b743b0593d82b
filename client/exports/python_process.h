// A Python program that reads what is written into it. It belongs to no terminal: Ctrl-C reaches
// statctl only.
#ifndef STATCOLLECT_CLIENT_EXPORTS_PYTHON_PROCESS_H_
#define STATCOLLECT_CLIENT_EXPORTS_PYTHON_PROCESS_H_

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "client/exports/output.h"
#include "common/status.h"

namespace statcollect::client {

// The Python to run: STATCTL_PYTHON, else that of the active virtual environment, of the
// environment that statctl is installed in, of the source tree that it was built in, or the
// system's python3.
std::string FindPython();

// Not thread-safe. Destroyed before Wait, it kills the program.
class PythonProcess {
 public:
  struct End {
    int code = 0;        // exit code; 128 + N after signal N
    std::string errors;  // what it wrote to standard output and error, without blanks around it
  };

  // kNotFound: there is no such Python; the message says what was tried.
  static Result<PythonProcess> Start(const std::string& python, const std::string& program,
                                     const std::vector<std::string>& arguments);
  PythonProcess(PythonProcess&& other) noexcept;
  PythonProcess& operator=(PythonProcess&&) = delete;
  ~PythonProcess();

  // Its standard input; once. The program ends when that is closed.
  FileWriter TakeInput() { return std::move(input_); }
  // Waits until it has ended. Precondition: its input is closed, or it no longer reads.
  End Wait();

 private:
  PythonProcess(pid_t pid, FileWriter input, int errors)
      : pid_(pid), input_(std::move(input)), errors_(errors) {}

  pid_t pid_;  // 0: it has been waited for
  FileWriter input_;
  int errors_;
};

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_EXPORTS_PYTHON_PROCESS_H_
