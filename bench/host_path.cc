// Host time of Agent::Observe through the public header: a tensor so small that its reduction is
// next to nothing, beside the reduction alone and an Observe in a step that is not recorded. Needs
// a collector to send to; host_path.py starts one and runs this. Target P5: at most 1 us without
// the reduction.
//
//   statagent_host_bench HOST:PORT [ROUNDS]
//
// Prints a list of {name, nanoseconds: [one value a round]} as JSON.
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "statagent/agent.h"

namespace {

using statagent::Agent;
using statagent::Identity;
using statagent::Kind;
using statagent::TensorView;

constexpr std::uint32_t kCalls = 1000;  // in one timed loop
constexpr std::chrono::seconds kFlushTimeout{30};

struct Row {
  std::string name;
  std::vector<double> nanoseconds;
};

[[noreturn]] void Fail(const std::string& what, const statagent::Status& status) {
  std::cerr << "statagent_host_bench: " << what << ": " << status.message() << '\n';
  std::exit(1);
}

double NanosecondsACall(const std::function<void()>& loop) {
  const auto begin = std::chrono::steady_clock::now();
  loop();
  const std::chrono::duration<double, std::nano> taken = std::chrono::steady_clock::now() - begin;
  return taken.count() / kCalls;
}

void Check(const statagent::Status& status) {
  if (!status.ok()) Fail("observe", status);
}

// One tensor size: the reduction, and what Observe adds to it.
class Case {
 public:
  Case(Agent* agent, std::int64_t elements)
      : agent_(agent), values_(elements, 1.0F), shape_{elements} {
    view_ = {.data = values_.data(), .dtype = statagent::DType::kF32, .shape = shape_};
    const std::string size = std::to_string(elements) + " float32";
    rows_ = {{"C++: reduction, " + size, {}},
             {"C++: Observe by handle, " + size, {}},
             {"C++: Observe by name, " + size, {}}};
    for (std::uint32_t i = 0; i < kCalls; ++i) {
      const auto handle =
          agent->Intern({.name = "handle." + size, .kind = Kind::kInspect, .call = i});
      if (!handle.ok()) Fail("intern", handle.status());
      handles_.push_back(*handle);
      names_.push_back("name." + std::to_string(i));
    }
  }

  void Round() {
    rows_[0].nanoseconds.push_back(NanosecondsACall([&] {
      for (std::uint32_t i = 0; i < kCalls; ++i) {
        if (!statagent::Compute(view_).ok()) std::abort();
      }
    }));
    rows_[1].nanoseconds.push_back(NanosecondsACall([&] {
      for (const std::uint32_t handle : handles_) Check(agent_->Observe(handle, view_));
    }));
    EndStep();
    rows_[2].nanoseconds.push_back(NanosecondsACall([&] {
      for (const std::string& name : names_) Check(agent_->Observe({.name = name}, view_));
    }));
    EndStep();
  }

  const std::vector<Row>& rows() const { return rows_; }

 private:
  void EndStep() {
    agent_->EndStep();
    const statagent::Status flushed = agent_->Flush(kFlushTimeout);
    if (!flushed.ok()) Fail("flush", flushed);
  }

  Agent* const agent_;
  const std::vector<float> values_;
  const std::vector<std::int64_t> shape_;
  TensorView view_;
  std::vector<std::uint32_t> handles_;
  std::vector<std::string> names_;
  std::vector<Row> rows_;
};

void Print(const std::deque<Case>& cases) {
  std::cout << "[";
  const char* separator = "";
  for (const Case& each : cases) {
    for (const Row& row : each.rows()) {
      std::cout << separator << "{\"name\": \"" << row.name << "\", \"nanoseconds\": [";
      for (std::size_t i = 0; i < row.nanoseconds.size(); ++i) {
        std::cout << (i == 0 ? "" : ", ") << row.nanoseconds[i];
      }
      std::cout << "]}";
      separator = ",\n ";
    }
  }
  std::cout << "]\n";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    std::cerr << "usage: statagent_host_bench HOST:PORT [ROUNDS]\n";
    return 2;
  }
  const int rounds = argc == 3 ? std::atoi(argv[2]) : 200;
  auto agent = Agent::Start({.run = "host-path-cpp", .collector = argv[1], .required = true});
  if (!agent.ok()) Fail("start", agent.status());
  std::deque<Case> cases;  // a case must not move: its view borrows
  for (const std::int64_t elements : {1, 16}) cases.emplace_back(agent->get(), elements);
  for (int round = 0; round < rounds; ++round) {
    for (Case& each : cases) each.Round();
  }
  for (const auto& [cause, lost] : (*agent)->counters().dropped) {
    if (lost == 0) continue;
    std::cerr << "statagent_host_bench: " << lost << " records were dropped (" << cause
              << "); expected none; lost records cost less\n";
    return 1;
  }
  Print(cases);
  return 0;
}
