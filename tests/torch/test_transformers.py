"""Hugging Face Trainer on a tiny random model."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, TrainerCallback, TrainingArguments

from shardprep.adapters.transformers import ShardTrainer, causal_lm_inputs, micro_batches_per_step
from shardprep.errors import ConfigError
from shardprep.torch import TorchLoader

SIZES = {"batch_tokens": 1_500, "slots": 2, "rank": 0, "world_size": 1}


def model():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=701, hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=512, pad_token_id=0, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def training(folder, **more):
    given = {
        "output_dir": str(folder), "report_to": "none", "use_cpu": True, "disable_tqdm": True, "num_train_epochs": 2,
        "logging_steps": 1, "save_strategy": "steps", "save_steps": 5, "gradient_accumulation_steps": 6,
        "learning_rate": 0.01, "seed": 1, "dataloader_pin_memory": False,
    }  # fmt: skip
    return TrainingArguments(**{**given, **more})


class Seen(ShardTrainer):
    """Notes the rows of each optimizer step."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.rows: dict[int, list[str]] = {}

    def inputs_of(self, batch):
        step = self.rows.setdefault(batch.epoch * 1000 + batch.step, [])
        step += batch.ids[: batch.real]
        return causal_lm_inputs(batch)


def trainer(dataset, folder, accumulate=3, **more):
    loader = TorchLoader(dataset.loader(**SIZES, accumulate=accumulate))
    return Seen(model=model(), args=training(folder, **more), train_dataset=loader)


class Stop(TrainerCallback):
    def __init__(self, at):
        self.at = at

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step == self.at


def losses(done):
    return {entry["step"]: entry["loss"] for entry in done.state.log_history if "loss" in entry}


def test_training_killed_and_resumed_is_training(dataset, tmp_path):
    whole = trainer(dataset, tmp_path / "whole")
    loader = whole.train_dataset
    assert len(loader) % micro_batches_per_step(loader)  # the last step of an epoch is shorter
    whole.train()
    assert whole.state.global_step == 2 * loader.steps
    for epoch in range(2):
        rows = [name for step, ids in whole.rows.items() if step // 1000 == epoch for name in ids]
        assert len(rows) == len(set(rows)) == dataset.splits["train"]

    first = trainer(dataset, tmp_path / "killed")
    first.add_callback(Stop(7))
    first.train()
    again = trainer(dataset, tmp_path / "killed")
    again.train(resume_from_checkpoint=True)
    assert again.state.global_step == whole.state.global_step
    assert losses(again) == losses(whole)
    expected = {step: ids for step, ids in whole.rows.items() if step >= 5}
    assert again.rows == expected
    for name, parameter in whole.model.state_dict().items():
        assert torch.equal(parameter, again.model.state_dict()[name])


def test_a_resume_in_a_later_epoch_and_callbacks_restored(dataset, tmp_path):
    whole = trainer(dataset, tmp_path / "whole")
    whole.train()
    first = trainer(dataset, tmp_path / "killed")
    at = first.train_dataset.steps + 5
    first.add_callback(Stop(at))
    first.args.save_steps = at
    first.train()
    again = trainer(dataset, tmp_path / "killed", restore_callback_states_from_checkpoint=True)
    again.train(resume_from_checkpoint=str(tmp_path / f"killed/checkpoint-{at}"))
    assert losses(again) == losses(whole)


def test_ignore_data_skip(dataset, tmp_path):
    def short(folder, **more):
        return trainer(dataset, folder, accumulate=1, gradient_accumulation_steps=2, num_train_epochs=1, **more)

    whole = short(tmp_path / "whole")
    whole.train()
    first = short(tmp_path / "killed")
    first.add_callback(Stop(7))
    first.train()
    again = short(tmp_path / "killed", ignore_data_skip=True)
    again.train(resume_from_checkpoint=True)
    assert losses(again) == losses(whole)

    odd = trainer(dataset, tmp_path / "odd")
    odd.add_callback(Stop(5))
    odd.train()
    with pytest.raises(ConfigError, match="Leave it False"):
        trainer(dataset, tmp_path / "odd", ignore_data_skip=True).train(resume_from_checkpoint=True)


def test_what_does_not_fit_is_refused(dataset, tmp_path):
    with pytest.raises(ConfigError, match="set gradient_accumulation_steps=6"):
        trainer(dataset, tmp_path, gradient_accumulation_steps=4).train()
    with pytest.raises(ConfigError, match=r"train_dataset must be a shardprep\.torch\.TorchLoader here, got list"):
        ShardTrainer(model=model(), args=training(tmp_path), train_dataset=[1]).train()
    first = trainer(dataset, tmp_path)
    first.add_callback(Stop(5))
    first.train()
    path = tmp_path / "checkpoint-5/trainer_state.json"
    state = json.loads(path.read_text())
    del state["stateful_callbacks"]["ReaderStateCallback"]
    path.write_text(json.dumps(state))
    with pytest.raises(ConfigError, match="holds no state of the reader"):
        trainer(dataset, tmp_path).train(resume_from_checkpoint=True)


def test_eval_loss_is_that_of_the_whole_split(dataset, tmp_path):
    evaluation = TorchLoader(dataset.loader("validation", shuffle=False, **SIZES))
    assert any(batch.real < len(batch.ids) for batch in evaluation)  # filler rows
    made = ShardTrainer(
        model=model(), args=training(tmp_path), eval_dataset={"one": evaluation, "two": evaluation},
        compute_metrics=lambda predicted: {"targets": int((predicted.label_ids != -100).sum())},
    )  # fmt: skip
    metrics = made.evaluate()
    total = targets = 0.0
    with torch.no_grad():
        for batch in TorchLoader(dataset.loader("validation", shuffle=False, batch_size=1, rank=0, world_size=1)):
            count = int(batch.lengths[0]) - 1
            if count:
                total += float(made.model(**causal_lm_inputs(batch)).loss) * count
                targets += count
    assert metrics["eval_one_loss"] == metrics["eval_two_loss"] == pytest.approx(total / targets, rel=1e-5)
    assert metrics["eval_one_targets"] == targets + dataset.splits["validation"]
    assert made.predict(evaluation).metrics["test_loss"] == metrics["eval_one_loss"]
