"""Announcements of companies that do not exist, with figures that fit each other."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import date, timedelta

from mindstream_cli.sample.grammar import Page, Row, Voice
from mindstream_cli.sample.pages import Table

PERIODS = (("年度报告摘要", 12, 31), ("半年度报告摘要", 6, 30), ("第三季度报告", 9, 30))
TRENDS = ("增加", "减少", "明显增加", "有所减少", "放缓", "回升", "好转", "回落")


def announcement(voice: Voice, page: Page, rng: random.Random) -> tuple[str, list[str], Table]:
    """Title, paragraphs, and the table of the main figures (header row first)."""
    figures = draw(rng)
    title, paragraphs = voice.page(page, 数=figures)
    rows = (
        ("营收", "营业收入（亿元）"),
        ("净利", "净利润（万元）"),
        ("总资产", "总资产（亿元）"),
        ("每股收益", "每股收益（元）"),
    )
    table: Table = [("项目", "本期", "上年同期", "变动")]
    table += [(name, figures[key], figures[f"上年{key}"], figures[f"{key}变动"]) for key, name in rows]
    return title, paragraphs, table


def draw(rng: random.Random) -> Row:
    """The figures of one announcement: amounts follow from sales, margin and growth; a cell that sentences draw from
    more than once holds several values."""
    sales, growth = rng.uniform(2, 96), rng.uniform(-0.18, 0.36)  # 100 million yuan; share
    margin, profit_growth = rng.uniform(0.02, 0.19), rng.uniform(-0.4, 0.6)
    assets, asset_growth = sales * rng.uniform(1.1, 2.6), rng.uniform(-0.05, 0.2)
    equity, profit = assets * rng.uniform(0.35, 0.75), sales * margin * 10_000  # profit in 10,000 yuan
    shares = round(profit / rng.uniform(0.15, 1.6), 2)  # 10,000 shares
    bonus = min(round(rng.uniform(0.2, 0.6) * profit / shares * 10, 1) or 0.1, 9.9)  # yuan for ten shares
    row = {
        "营收": f"{sales:.2f}",
        "净利": f"{profit:,.2f}",
        "总资产": f"{assets:.2f}",
        "每股收益": f"{profit / shares:.2f}",
        "净资产": f"{equity:.2f}",
        "收益率": f"{profit / equity / 100:.2f}",
        "现金流": f"{profit * rng.uniform(0.4, 1.7):,.2f}",
        "毛利率": f"{margin * 100 + rng.uniform(8, 30):.2f}",
        "股本": f"{shares:,.2f}",
        "派现": f"{bonus:.1f}",
        "派现额": f"{shares * bonus / 10:,.2f}",
        "派现比": f"{shares * bonus / 10 / profit * 100:.2f}",
        "总投": _several(rng, lambda: f"{rng.uniform(1.2, 18):.1f}"),
        "小额": _several(rng, lambda: f"{rng.uniform(120, 4800):,.2f}"),
        "中额": _several(rng, lambda: f"{rng.uniform(5000, 68000):,.2f}"),
        "占比甲": _several(rng, lambda: f"{rng.uniform(31, 68):.2f}"),
        "占比乙": _several(rng, lambda: f"{rng.uniform(20, 55):.2f}"),
        "占比丙": _several(rng, lambda: f"{rng.uniform(1.5, 15):.2f}"),
        "届": str(rng.randint(3, 9)),
        "次": str(rng.randint(2, 30)),
        "增值": f"{rng.uniform(20, 260):.2f}",
        "价格变动": _several(rng, lambda: _change(rng.uniform(-0.15, 0.2), "上涨")),
        "百分点变动": _several(rng, lambda: f"{rng.choice(('提高', '下降'))}{rng.uniform(0.1, 4):.2f}个百分点"),
        "好坏": "、".join(TRENDS),
    }
    for key, value, rate in (
        ("营收", sales, growth),
        ("净利", profit, profit_growth),
        ("总资产", assets, asset_growth),
        ("每股收益", profit / shares, profit_growth),
    ):
        row[f"上年{key}"] = f"{value / (1 + rate):,.2f}"
        row[f"{key}变动"] = _change(rate, "增长")
    return row | _dates(rng)


def _dates(rng: random.Random) -> Row:
    year, (report, month, day) = rng.randint(2021, 2025), rng.choice(PERIODS)
    end = date(year, month, day)
    told = _workday(end + timedelta(days=rng.randint(24, 110)))
    record = _workday(told + timedelta(days=rng.randint(8, 14)))
    days = {"期末": end, "公告日": told, "登记日": record, "除息日": _workday(record + timedelta(days=1))}
    days["会议日"] = _workday(record + timedelta(days=rng.randint(4, 7)))
    return {"年": str(year), "报告": report} | {k: f"{d.year}年{d.month}月{d.day}日" for k, d in days.items()}


def _workday(day: date) -> date:
    return day + timedelta(days=max(0, 7 - day.weekday())) if day.weekday() > 4 else day


def _change(rate: float, up: str) -> str:
    return f"{up if rate >= 0 else '下降'}{abs(rate) * 100:.2f}%"


def _several(rng: random.Random, one: Callable[[], str]) -> str:
    return "、".join(one() for _ in range(12))
