// Trains a small perceptron on every MPI rank, averages the gradients with MPI_Allreduce, and lets
// statagent observe it.
#include <mpi.h>
#include <statagent/agent.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "flags.h"
#include "perceptron.h"

namespace {

constexpr std::uint64_t kSeed = 7;
constexpr std::size_t kInputs = 16, kHidden = 64, kOutputs = 4, kSamples = 32;
constexpr float kLearningRate = 0.05f;

using statagent::Kind;
using statagent::Mode;

// All calls of the agent are here. Without an agent it does nothing.
class Observer {
 public:
  explicit Observer(std::unique_ptr<statagent::Agent> agent) : agent_(std::move(agent)) {}

  void Tensor(const char* name, Kind kind, const Matrix& matrix, Mode mode = Mode::kTrain) {
    if (agent_ == nullptr) return;
    const statagent::Status status = agent_->Observe(
        {.name = name, .kind = kind, .call = 0, .mode = mode},
        {.data = matrix.values.data(), .dtype = statagent::DType::kF32, .shape = matrix.shape});
    if (!status.ok()) std::fprintf(stderr, "observe %s: %s\n", name, status.message().c_str());
  }

  void Weights(const Linear& fc1, const Linear& fc2, Mode mode) {
    Tensor("fc1.weight", Kind::kWeight, fc1.weight, mode);
    Tensor("fc1.bias", Kind::kWeight, fc1.bias, mode);
    Tensor("fc2.weight", Kind::kWeight, fc2.weight, mode);
    Tensor("fc2.bias", Kind::kWeight, fc2.bias, mode);
  }

  void EndStep(float loss) {
    if (agent_ == nullptr) return;
    (void)agent_->LogScalar("loss", loss);
    agent_->EndStep();
  }

  // Waits for what is still on its way, at most five seconds; says what was lost.
  void Close() {
    if (agent_ == nullptr) return;
    const statagent::Status closed = agent_->Close(std::chrono::seconds(5));
    const statagent::Counters counters = agent_->counters();
    if (!closed.ok())
      std::fprintf(stderr, "rank %u: %s\n", agent_->rank(), closed.message().c_str());
    if (agent_->rank() == 0) {
      std::printf("rank 0 recorded %llu of %llu records\n",
                  static_cast<unsigned long long>(counters.acked),
                  static_cast<unsigned long long>(counters.produced));
    }
  }

 private:
  std::unique_ptr<statagent::Agent> agent_;
};

void AverageOverRanks(int ranks, Matrix* matrix) {
  MPI_Allreduce(MPI_IN_PLACE, matrix->values.data(), static_cast<int>(matrix->values.size()),
                MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  for (float& value : matrix->values) value /= static_cast<float>(ranks);
}

void AverageGradients(int ranks, Linear* layer) {
  AverageOverRanks(ranks, &layer->weight_grad);
  AverageOverRanks(ranks, &layer->bias_grad);
}

// Forward, backward, all-reduce, update. Returns this rank's loss.
float TrainStep(const Flags& flags, int step, int rank, int ranks, Linear* fc1, Linear* fc2,
                Observer* observer) {
  const bool buggy = step >= flags.bug_step;
  const float scale = buggy && flags.bug == Bug::kActivationScale ? 1.01f : 1.0f;
  const float rate = kLearningRate * (buggy && flags.bug == Bug::kLearningRate ? 1.1f : 1.0f);
  const Batch batch =
      MakeBatch(kSeed, static_cast<std::uint64_t>(step) * 4096 + static_cast<std::uint64_t>(rank),
                kSamples, kInputs, kOutputs);
  observer->Tensor("inputs", Kind::kBatch, batch.inputs);
  observer->Tensor("targets", Kind::kBatch, batch.targets);

  const Matrix hidden = fc1->Forward(batch.inputs);
  observer->Tensor("fc1", Kind::kOutput, hidden);
  const Matrix active = Relu(hidden, scale);
  observer->Tensor("relu", Kind::kOutput, active);
  const Matrix prediction = fc2->Forward(active);
  observer->Tensor("fc2", Kind::kOutput, prediction);

  Matrix grad;
  const float loss = MeanSquaredError(prediction, batch.targets, &grad);
  observer->Tensor("fc2", Kind::kGradOutput, grad);
  grad = fc2->Backward(active, grad);
  observer->Tensor("relu", Kind::kGradOutput, grad);
  ReluBackward(hidden, scale, &grad);
  observer->Tensor("fc1", Kind::kGradOutput, grad);
  (void)fc1->Backward(batch.inputs, grad);

  if (!(buggy && flags.bug == Bug::kSkipAllreduce)) {
    AverageGradients(ranks, fc1);
    AverageGradients(ranks, fc2);
  }
  observer->Tensor("fc1.weight", Kind::kWeightGrad, fc1->weight_grad);
  observer->Tensor("fc1.bias", Kind::kWeightGrad, fc1->bias_grad);
  observer->Tensor("fc2.weight", Kind::kWeightGrad, fc2->weight_grad);
  observer->Tensor("fc2.bias", Kind::kWeightGrad, fc2->bias_grad);
  Update(fc1, rate);
  Update(fc2, rate);
  observer->Weights(*fc1, *fc2, Mode::kTrain);
  observer->EndStep(loss);
  return loss;
}

void Train(const Flags& flags, int rank, int ranks, Observer* observer) {
  Linear fc1(kInputs, kHidden, kSeed), fc2(kHidden, kOutputs, kSeed + 1);
  observer->Weights(fc1, fc2, Mode::kInit);
  for (int step = 0; step < flags.steps; ++step) {
    float loss = TrainStep(flags, step, rank, ranks, &fc1, &fc2, observer);
    MPI_Allreduce(MPI_IN_PLACE, &loss, 1, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0 && (step % 10 == 0 || step + 1 == flags.steps)) {
      std::printf("step %3d  loss %.6f\n", step, static_cast<double>(loss) / ranks);
    }
  }
}

// False if the agent refuses (the run's name is taken, say). Without a collector it starts and
// keeps trying.
bool StartAgent(const Flags& flags, int rank, int ranks, std::unique_ptr<statagent::Agent>* agent) {
  if (!flags.agent) return true;
  auto started =
      statagent::Agent::Start({.run = flags.run,
                               .collector = flags.collector,
                               .if_exists = flags.if_exists,
                               .config = {{"learning_rate", std::to_string(kLearningRate)},
                                          {"hidden", std::to_string(kHidden)},
                                          {"samples_per_rank", std::to_string(kSamples)}},
                               .rank = static_cast<std::uint32_t>(rank),
                               .world_size = static_cast<std::uint32_t>(ranks)});
  if (!started.ok()) {
    std::fprintf(stderr, "rank %d: %s\n", rank, started.status().message().c_str());
    return false;
  }
  *agent = *std::move(started);
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);

  Flags flags;
  std::string error;
  const bool parsed = ParseFlags(argc, argv, &flags, &error);
  if (!parsed || flags.help) {
    if (rank == 0 && parsed) std::fputs(Usage(), stdout);
    if (rank == 0 && !parsed) std::fprintf(stderr, "%s\n%s", error.c_str(), Usage());
    MPI_Finalize();
    return parsed ? 0 : 2;
  }

  std::unique_ptr<statagent::Agent> agent;
  int started = StartAgent(flags, rank, ranks, &agent) ? 1 : 0;
  MPI_Allreduce(MPI_IN_PLACE, &started, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  if (started == 1) {
    Observer observer(std::move(agent));
    Train(flags, rank, ranks, &observer);
    observer.Close();
  }
  agent.reset();
  MPI_Finalize();
  return started == 1 ? 0 : 1;
}
