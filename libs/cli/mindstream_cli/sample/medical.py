"""Questions of patients and answers of doctors: who asks fits the illness."""

from __future__ import annotations

import random

from mindstream_cli.sample.grammar import Row, Voice

Record = dict[str, str]  # department, title, ask, answer
ASKERS = {  # who may have what a department treats; others: everyone but children
    "儿科": {"儿童"},
    "妇科": {"女"},
    "产科": {"孕"},
}
ACUTE = {"阑尾炎", "肺炎", "小儿腹泻", "小儿发热", "手足口病", "带状疱疹", "中耳炎"}  # a matter of days
MEN, OLD = {"前列腺增生"}, {"冠心病", "骨质疏松", "脑供血不足", "前列腺增生", "膝关节骨性关节炎"}


def record(voice: Voice, rng: random.Random) -> Record:
    """One question and its answer."""
    illness = voice.row("病")
    asker = rng.choice([row for row in voice.material.tables["人"] if suits(row, illness)])
    since = rng.choice(voice.material.lists["急病程" if illness["名"] in ACUTE else "病程"])
    title, (ask, answer) = voice.page(voice.material.pages["问诊"], 病=illness | {"病程": since}, 人=asker)
    return {"department": illness["科室"], "title": title, "ask": ask, "answer": answer}


def suits(asker: Row, illness: Row) -> bool:
    """Whether this person may have this illness: children's, women's and old men's illnesses have their own."""
    kinds = set(asker["类"].split("、"))
    if illness["名"] in MEN:
        return {"男", "老"} <= kinds
    if illness["名"] in OLD:
        return "老" in kinds
    if wanted := ASKERS.get(illness["科室"]):
        return bool(kinds & wanted)
    return "儿童" not in kinds
